"""The figures of docs/method.md, on the real vLLM for the CPU and the demo pair, from minutes to half an hour each; and
what the operator costs on a large fleet."""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from pathlib import Path
from typing import Any

from bench import operator, repeat, serving, ways
from bench.setting import Setting
from bench.show import write_json
from specserve_profiler.contract.profile import Profile
from specserve_profiler.contract.reasons import ProfilingError

RESULTS = Path("dist/bench")
PICTURE = Path("docs/images/serving.svg")
_AGAIN = "make the report anew from the JSON of an earlier run; nothing is measured"


def main() -> None:
    """Parses and runs."""
    arguments = _parser().parse_args()
    try:
        arguments.run(arguments)
    except (ProfilingError, RuntimeError, OSError, ValueError) as error:
        sys.exit(f"bench: {error}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    one = _command(commands, "measure", "one profile by the product's own code, for --profile and --exhaustive")
    one.add_argument("--verify", choices=("Table", "Full", "Off"), default="Table")
    one.set_defaults(run=_measure)
    both = _command(commands, "profile", "one boot per K against one boot for all: time to the same interval, validity")
    both.add_argument("--rounds", type=_at_least_two, default=2, help="two or more: else drift does not show")
    both.add_argument("--generations", type=int, default=96, help="whole generations in each boot of one K")
    both.add_argument(
        "--exhaustive", type=Path, nargs="+", default=[], help="for the regret: long profiles, or what repeat wrote"
    )
    both.add_argument("--again", type=Path, help=_AGAIN)
    both.set_defaults(run=_ways)
    served = _command(commands, "serving", "closed loops of no speculation, each fixed K and the table")
    served.add_argument("--profile", type=Path, help="whose table is served; measured now where absent")
    served.add_argument("--concurrency", type=_numbers, default=(1, 2, 4, 8, 16, 32), help="1,2,4,...")
    served.add_argument("--loop-seconds", type=float, default=10.0, help="of each loop, once it is full")
    served.add_argument("--rounds", type=int, default=1)
    served.add_argument("--seed", type=int, default=0, help="of the order of the arms")
    served.add_argument("--picture", type=Path, default=PICTURE)
    served.add_argument("--again", type=Path, help=_AGAIN)
    served.set_defaults(run=_serving)
    again = _command(commands, "repeat", "profiles in a row, and how much their tables differ")
    again.add_argument("--times", type=int, default=5)
    again.add_argument("--load", type=_numbers, default=(2, 4), help="which of them run beside a busy process; 0: none")
    again.add_argument("--core", type=int, default=0, help="which core that process keeps busy")
    again.add_argument("--again", type=Path, help=_AGAIN)
    again.set_defaults(run=_repeat)
    _operator_command(commands)
    return parser


def _operator_command(commands: Any) -> None:
    what = "the operator on a large fleet, beside a bare client that applies the same objects"
    command = commands.add_parser(
        "operator",
        help=what,
        description=f"{what[0].upper()}{what[1:]}.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    command.add_argument("-o", "--output", type=Path, default=RESULTS / "operator.json", help="where the JSON goes")
    command.add_argument("--nodes", type=_numbers, default=(500,), help="one run for each: 500,5000,...")
    command.add_argument("--servings", type=_numbers, default=(100,), help="likewise")
    command.add_argument("--namespaces", type=_numbers, default=(1,), help="likewise")
    command.add_argument("--accelerators", type=int, choices=(1, 4), default=1, help="types that each serving runs on")
    command.add_argument("--foreign-pods", type=int, default=0, help="pods of others")
    command.add_argument("--large-profiles", type=int, default=0, help="ConfigMaps of 1 MB labelled as profiles")
    command.add_argument("--quiet-seconds", type=float, default=30.0, help="how long nothing happens but heartbeats")
    command.add_argument("--heartbeats", type=float, default=50.0, help="of nodes, a second")
    command.add_argument("--changes", type=int, default=12, help="of a node's label")
    command.add_argument("--workers", type=int, default=4, help="of the operator and of the bare client")
    command.set_defaults(run=_operator)


def _operator(arguments: argparse.Namespace) -> None:
    given = {name: value for name, value in vars(arguments).items() if name in operator.Sizes.__dataclass_fields__}
    shapes = itertools.product(arguments.nodes, arguments.servings, arguments.namespaces)
    several = [
        operator.Sizes(**given | {"nodes": nodes, "servings": servings, "namespaces": spaces})
        for nodes, servings, spaces in shapes
    ]
    operator.run(several, arguments.output)


def _command(commands: Any, name: str, what: str) -> argparse.ArgumentParser:
    command: argparse.ArgumentParser = commands.add_parser(
        name,
        help=what,
        description=f"{what[0].upper()}{what[1:]}.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    command.add_argument("-o", "--output", type=Path, default=RESULTS / f"{name}.json", help="where the JSON goes")
    command.add_argument("--kmax", type=_at_least_two, default=5)
    command.add_argument("--batch-sizes", type=_numbers, default=(1, 2, 4, 8, 16, 32), help="measured; 1,2,4,...")
    command.add_argument("--seconds", type=float, default=120.0, help="of measuring in one profile")
    return command


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


def _at_least_two(text: str) -> int:
    if int(text) < 2:
        raise argparse.ArgumentTypeError("must be 2 or more")
    return int(text)


def _setting(arguments: argparse.Namespace) -> Setting:
    return Setting.prepared(arguments.kmax, arguments.batch_sizes, arguments.seconds)


def _profile(path: Path) -> Profile:
    return Profile.model_validate_json(path.read_text(encoding="utf-8"))


def _raw(path: Path) -> str:
    return json.dumps(json.loads(path.read_text(encoding="utf-8"))["raw"])


def _measure(arguments: argparse.Namespace) -> None:
    profile = _setting(arguments).profile(arguments.verify)
    write_json(arguments.output, profile)
    print(f"{arguments.output}: {profile.decision.verdict}, {profile.decision.reason}")


def _profiles(path: Path) -> list[Profile]:
    """All that a file holds: one, or those of ``repeat``."""
    content = json.loads(path.read_text(encoding="utf-8"))
    raw = content.get("raw")
    return list(repeat.Raw.model_validate(raw).profiles) if raw else [_profile(path)]


def _ways(arguments: argparse.Namespace) -> None:
    exhaustive = [profile for path in arguments.exhaustive for profile in _profiles(path)]
    if arguments.again:
        ways.write(ways.Raw.model_validate_json(_raw(arguments.again)), exhaustive, arguments.output)
        return
    ways.run(_setting(arguments), arguments.rounds, arguments.generations, exhaustive, arguments.output)


def _serving(arguments: argparse.Namespace) -> None:
    if arguments.again:
        raw = serving.Raw.model_validate_json(_raw(arguments.again))
        serving.write(raw, arguments.output, arguments.picture)
        return
    setting = _setting(arguments)
    profile = _profile(arguments.profile) if arguments.profile else setting.profile("Table")
    serving.run(
        setting,
        profile,
        arguments.concurrency,
        arguments.loop_seconds,
        arguments.rounds,
        arguments.seed,
        arguments.output,
        arguments.picture,
    )


def _repeat(arguments: argparse.Namespace) -> None:
    if arguments.again:
        repeat.write(repeat.Raw.model_validate_json(_raw(arguments.again)), arguments.output)
        return
    loaded = [number for number in arguments.load if number]
    repeat.run(_setting(arguments), arguments.times, loaded, arguments.core, arguments.output)


if __name__ == "__main__":
    main()
