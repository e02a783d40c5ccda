"""``python -m demo``: run the demo, prepare only what it needs, or take everything away."""

from __future__ import annotations

import argparse
import sys
import time

from demo import environment, story
from demo.console import Console, DemoError, main_guard
from devcluster import DevclusterError


def main(argv: list[str] | None = None) -> int:
    """Exit code 0 where all went as it should."""
    parser = argparse.ArgumentParser(
        prog="demo",
        description=__doc__,
        epilog="Uses the cluster of KUBECONFIG where that is set, else an embedded one that it starts itself (root).",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    commands.add_parser("run", help="measure, serve, change the accelerator, measure and serve again")
    prepare = commands.add_parser("prepare", help="fill the caches: engine, model pair, programs, images")
    prepare.add_argument("--engine", action="store_true", help="only the engine and the model pair")
    commands.add_parser("down", help="take away what run made")
    options = parser.parse_args(argv)
    console = Console()
    try:
        if options.command == "run":
            return _run(console)
        return _down(console) if options.command == "down" else _prepare(console, engine_only=options.engine)
    except (DemoError, DevclusterError, RuntimeError, TimeoutError) as error:
        return main_guard(error)
    except KeyboardInterrupt:
        return main_guard(DemoError("interrupted; take away what is up with `make demo-down`"))


def _run(console: Console) -> int:
    began = time.monotonic()
    prepared = environment.prepare(console)
    story.tell(prepared, console)
    console.show(story.last_words(prepared, console, began))
    return 0


def _prepare(console: Console, *, engine_only: bool) -> int:
    environment.ensure_engine_parts(console)
    if not engine_only:
        environment.ensure_cluster_parts(console)
    return 0


def _down(console: Console) -> int:
    environment.take_down(console)
    return 0


if __name__ == "__main__":
    sys.exit(main())
