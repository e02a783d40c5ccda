"""What vLLM itself makes of tables. Runs beside vLLM; one JSON object a line in, one a line out.

    {"args": [...], "maxNumSeqs": n}   -> {"lookup": [K of batch size 0, 1, ... n], "capture": [sizes] or null}
    {"args": [...], "config": true}    -> the same from a whole engine config, models and all

What vLLM refuses gives {"refused": its words}. K of batch size 0 is never used.
"""

import contextlib
import io
import json
import sys
from typing import Any

from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser
from vllm.v1.spec_decode.dynamic.utils import build_dynamic_sd_schedule_lookup

PARSER = make_arg_parser(FlexibleArgumentParser())


def judged(case: dict[str, Any]) -> dict[str, Any]:
    arguments = PARSER.parse_args(case["args"])
    if case.get("config"):
        config = AsyncEngineArgs.from_cli_args(arguments).create_engine_config()
        assert config.speculative_config is not None
        field = config.speculative_config.num_speculative_tokens_per_batch_size
        kmax = config.speculative_config.num_speculative_tokens
        size = config.scheduler_config.max_num_seqs
    else:
        field = arguments.speculative_config["num_speculative_tokens_per_batch_size"]
        kmax, size = arguments.speculative_config["num_speculative_tokens"], case["maxNumSeqs"]
    lookup = build_dynamic_sd_schedule_lookup(field, vllm_max_batch_size=size, vllm_num_speculative_tokens=kmax)
    return {"lookup": lookup, "capture": arguments.cudagraph_capture_sizes}


for line in sys.stdin:
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            answer = judged(json.loads(line))
    except SystemExit:
        answer = {"refused": said.getvalue()[-500:]}
    except (ValueError, TypeError, AssertionError) as error:
        answer = {"refused": f"{type(error).__name__}: {error}"[:500]}
    sys.stdout.write("@" + json.dumps(answer) + "\n")
