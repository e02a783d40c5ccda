"""What vLLM itself makes of a speculative config. Runs beside vLLM; prints its fields, then answers each line of stdin.

A line is the arguments of an engine; the answer has the values of its speculative config, or {"refused": its words}.
The whole engine config is made: models are read, every validator runs, no weight is loaded.
"""

import contextlib
import dataclasses
import io
import json
import sys
from typing import Any

from vllm.config.speculative import SpeculativeConfig
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser

PARSER = make_arg_parser(FlexibleArgumentParser())
FIELDS = [field.name for field in dataclasses.fields(SpeculativeConfig)]


def judged(args: list[str]) -> dict[str, Any]:
    config = AsyncEngineArgs.from_cli_args(PARSER.parse_args(args)).create_engine_config().speculative_config
    return {name: getattr(config, name) for name in FIELDS}


sys.stdout.write("@" + json.dumps(FIELDS) + "\n")
for line in sys.stdin:
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            answer = judged(json.loads(line))
    except SystemExit:
        answer = {"refused": said.getvalue()[-500:]}
    except Exception as error:
        answer = {"refused": f"{type(error).__name__}: {error}"[:500]}
    sys.stdout.write("@" + json.dumps(answer, default=str) + "\n")
