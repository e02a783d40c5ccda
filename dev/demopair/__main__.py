"""`python -m demopair`: build the demo pair, or measure how often its target accepts its drafter's tokens."""

import argparse
import json
import os
import sys
from dataclasses import asdict

from demopair import cores
from demopair.cache import built_pair, cache_dir


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m demopair", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser(
        "build", help="build the pair where it is absent (under 2 minutes; needs torch and transformers)"
    )
    acceptance = commands.add_parser("acceptance", help="measure acceptance rates by position (20 s; needs torch)")
    acceptance.add_argument("--json", action="store_true", help="print one JSON object")
    commands.add_parser("path", help="print the pair's folder, built or not (needs nothing)")
    arguments = parser.parse_args()
    # Before torch is loaded. Its threads would else spin while they wait for one whose core something else keeps busy.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    try:
        return {"build": _build, "acceptance": lambda: _acceptance(arguments.json), "path": _path}[arguments.command]()
    except FileNotFoundError as error:
        print(error, file=sys.stderr)
        return 1


def _path() -> int:
    print(cache_dir())
    return 0


def _build() -> int:
    os.environ.setdefault("OMP_NUM_THREADS", str(cores.idle()))
    from demopair.build import build  # here, so that `path` needs no torch

    print(build(lambda line: print(line, file=sys.stderr, flush=True)))
    return 0


def _acceptance(as_json: bool) -> int:
    pair = built_pair()
    from demopair.acceptance import HOW, measure_acceptance

    found = measure_acceptance(pair)
    if as_json:
        print(json.dumps(asdict(found)))
        return 0
    print(HOW)
    for name, rates, steps in (
        ("all", found.rates, found.steps),
        ("early", found.early, found.early_steps),
        ("late", found.late, found.late_steps),
    ):
        print(f"{name:6}{' '.join(f'{rate:.3f}' for rate in rates)}  AL {1 + sum(rates):.2f}  {steps} steps")
    print(f"a generation has {found.mean_length:.0f} tokens in the mean; {found.ended:.0%} ended by themselves")
    return 0


if __name__ == "__main__":
    sys.exit(main())
