"""What vLLM makes of a ``--speculative-config`` before it loads a model. Runs beside vLLM.

One text a line in, as a JSON string; one line out: ``@1`` where vLLM's parser, its config and its check of the table
take it, ``@0`` and its words where one refuses. The models themselves are not asked: that there are none is no refusal.
"""

import contextlib
import io
import json
import sys
from types import SimpleNamespace

from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser
from vllm.v1.spec_decode.dynamic.utils import validate_and_normalize_dynamic_sd_schedule as validate

PARSER = make_arg_parser(FlexibleArgumentParser())
TABLE = "num_speculative_tokens_per_batch_size"


def refused(text: str) -> str | None:
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            parsed = PARSER.parse_args(["--speculative-config", text]).speculative_config
    except (SystemExit, RecursionError) as error:
        return f"{type(error).__name__} {said.getvalue()[-300:]}"
    engine = AsyncEngineArgs(model=".", speculative_config=parsed)  # a folder that is there: nothing is asked for
    target = SimpleNamespace(model=".", model_weights=None, quantization=None)
    try:
        engine.create_speculative_config(target, None)  # type: ignore[arg-type]
    except (ValueError, TypeError) as error:
        return str(error)
    except (AttributeError, ImportError):
        pass  # it went on to the target, which is none, or to a drafter that is not installed
    table = {key.replace("-", "_"): value for key, value in parsed.items()}.get(TABLE)
    try:
        if table is not None:
            validate(table)
    except (ValueError, TypeError) as error:
        return str(error)
    return None


for line in sys.stdin:
    why = refused(json.loads(line))
    sys.stdout.write(f"@0 {why!r}\n" if why is not None else "@1\n")
