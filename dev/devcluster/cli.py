"""The command line: `PYTHONPATH=dev python -m devcluster <command>`."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from devcluster import external
from devcluster.binaries import ensure_binaries
from devcluster.cache import Progress
from devcluster.cluster import Cluster, take_down
from devcluster.enginevenv import ensure_engine
from devcluster.errors import DevclusterError
from devcluster.images import RECIPES
from devcluster.lifecycle import interrupt_on_sigterm
from devcluster.locks import compile_locks

Commands = Any  # argparse keeps the type of what add_subparsers returns to itself

_EPILOG = """\
examples:
  python -m devcluster up                    # a whole cluster: 10 s, once the programs are built (8 min, once)
  eval "$(python -m devcluster env)"         # KUBECONFIG, and kubectl and helm on PATH
  python -m devcluster down                  # leaves nothing behind
  python -m devcluster up --control-plane-only --state /tmp/cp   # API server alone: 3 s, no root, beside others
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    options = _parser().parse_args(arguments)
    interrupt_on_sigterm()
    try:
        status: int = options.run(options) or 0
    except DevclusterError as error:
        print(f"devcluster: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # whoever read our output, such as `head`, has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        print("devcluster: interrupted", file=sys.stderr)
        return 130
    return status


def _parser() -> argparse.ArgumentParser:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("devcluster", description=__doc__, epilog=_EPILOG, formatter_class=raw)
    commands = parser.add_subparsers(required=True, metavar="command")
    _add_lifecycle(commands)
    _add_running(commands)
    _add_supplies(commands)
    return parser


def _add_lifecycle(commands: Commands) -> None:
    up = commands.add_parser("up", help="start a cluster")
    _state_option(up)
    up.add_argument("--control-plane-only", action="store_true", help="etcd, API server on loopback: no node, no root")
    up.add_argument("--controllers", action="store_true", help="with --control-plane-only: the controller manager too")
    up.add_argument("--timeout", type=float, default=120, help="seconds for each thing waited for (default 120)")
    up.add_argument("--keep-logs", action="store_true", help="keep the logs when the start fails")
    up.set_defaults(run=_up)

    down = commands.add_parser("down", help="take a cluster away, whole or half started; nothing is left behind")
    _state_option(down)
    down.add_argument("--keep-logs", action="store_true", help="leave the log folder")
    down.set_defaults(run=_down)

    status = commands.add_parser("status", help="what runs, and where its files are; exit status 1 where nothing runs")
    _state_option(status)
    status.add_argument("--json", action="store_true", help="machine-readable")
    status.set_defaults(run=_status)

    env = commands.add_parser("env", help="print `export` lines for a shell")
    _state_option(env)
    env.set_defaults(run=_env)


def _add_running(commands: Commands) -> None:
    load = commands.add_parser("load-image", help="load a docker-archive tar into the node")
    load.add_argument("archive", type=Path)
    load.set_defaults(run=lambda options: _cluster(None).load_image(options.archive))

    fake = commands.add_parser("fake-device", help="let a node offer devices it does not have; COUNT 0 takes them away")
    fake.add_argument("node")
    fake.add_argument("resource", help="such as nvidia.com/gpu")
    fake.add_argument("count", type=int)
    _state_option(fake)
    fake.set_defaults(run=lambda o: _cluster(o.state).fake_device(o.node, o.resource, o.count))

    link = commands.add_parser("link-demo", help="make /var/lib/specserve-demo/NAME point to a path of this machine")
    link.add_argument("name")
    link.add_argument("path", type=Path)
    link.set_defaults(run=lambda options: print(_cluster(None).link_demo(options.name, options.path)))

    for verb, text in (("kill", "SIGKILL one component, such as kube-apiserver"), ("start", "start it again")):
        component = commands.add_parser(verb, help=text)
        component.add_argument("component")
        _state_option(component)
        component.set_defaults(run=lambda o, verb=verb: getattr(_cluster(o.state), verb)(o.component))

    ctr = commands.add_parser("ctr", help="containerd's ctr on the node; put `--` before its options")
    ctr.add_argument("arguments", nargs="*")
    ctr.set_defaults(run=lambda options: print(_cluster(None).ctr(*options.arguments), end=""))


def _add_supplies(commands: Commands) -> None:
    commands.add_parser("build", help="build and unpack the programs into the cache").set_defaults(run=_build)

    image = commands.add_parser("image", help="make an image's tar, without a container engine, and print its path")
    image.add_argument("name", choices=sorted(RECIPES))
    image.set_defaults(run=lambda options: print(RECIPES[options.name](Progress())))

    engine = commands.add_parser("engine-env", help="make the environment of vLLM for the CPU (6 GB), print its path")
    engine.set_defaults(run=lambda _: print(ensure_engine(Progress()).venv))

    locks = commands.add_parser("locks", help="compile the lock files anew")
    locks.add_argument("--upgrade", action="store_true", help="take the newest versions that fit")
    locks.set_defaults(run=lambda options: compile_locks(Progress(), upgrade=options.upgrade))


def _state_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--state", type=Path, metavar="DIR", help="state folder (default: the full cluster's)")


def _cluster(state: Path | None) -> Cluster:
    found = Cluster.running(state)
    if found is None:
        raise DevclusterError("no cluster runs" + (f" in {state}" if state else "") + "; start one with `up`")
    return found


def _build(_: argparse.Namespace) -> None:
    binaries = ensure_binaries(Progress(), helm=True)
    for name, path in sorted(binaries.go.items()):
        print(f"{name:24} {path}")
    print(f"{'Debian packages':24} {binaries.debian}")


def _up(options: argparse.Namespace) -> None:
    progress = Progress()
    if options.control_plane_only:
        if options.state is None:
            raise DevclusterError("--control-plane-only needs --state DIR, a folder of its own")
        cluster = Cluster.control_plane(
            options.state,
            controllers=options.controllers,
            progress=progress,
            timeout=options.timeout,
            die_with_parent=False,
        )
    elif external.found(progress):
        return
    else:
        cluster = Cluster.up(options.state, progress=progress, timeout=options.timeout, keep_logs=options.keep_logs)
    progress("up")
    print(f"\nexport KUBECONFIG={cluster.kubeconfig}")


def _down(options: argparse.Namespace) -> None:
    print("down" if take_down(options.state, keep_logs=options.keep_logs) else "nothing runs here")


def _status(options: argparse.Namespace) -> int:
    cluster = Cluster.running(options.state)
    if cluster is None:
        print("{}" if options.json else "no cluster runs")
        return 1
    facts = cluster.describe()
    if options.json:
        print(json.dumps(facts, indent=1))
    else:
        for name, value in facts.items():
            print(f"{name:12} {value}")
    return 0


def _env(options: argparse.Namespace) -> None:
    cluster = _cluster(options.state)
    helm = ensure_binaries(Progress(quiet=True), node=False, helm=True).path("helm")
    print(f"export KUBECONFIG={cluster.kubeconfig}")
    print(f"export PATH={cluster.binaries.path('kubectl').parent}:{helm.parent}:$PATH")
