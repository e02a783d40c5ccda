"""Parses each line of stdin, a JSON list of arguments, with vLLM's own parser. Prints the namespaces, one a line.

A line that vLLM refuses gives ``null``. Only what differs from vLLM's defaults is printed. For the line ``"flags"`` it
is how many values each flag takes: a number, ``?`` or ``+``.
"""

import contextlib
import io
import json
import sys

from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser

parser = make_arg_parser(FlexibleArgumentParser())
defaults = vars(parser.parse_args([]))
for line in sys.stdin:
    if json.loads(line) == "flags":
        taken = {flag: action.nargs for action in parser._actions for flag in action.option_strings}
        sys.stdout.write(json.dumps(taken) + "\n")
        continue
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            found = vars(parser.parse_args(json.loads(line)))
    except (SystemExit, ValueError):
        found = None
    changed = found and {name: value for name, value in found.items() if value != defaults[name]}
    sys.stdout.write(json.dumps(changed, default=str) + "\n")
