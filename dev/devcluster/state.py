"""What one cluster leaves on disk about itself: enough for `down` to undo it after any interruption."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from devcluster import processes
from devcluster.cache import cache_root, key_of
from devcluster.controlplane import Endpoint
from devcluster.errors import DevclusterError
from devcluster.processes import Identity, Running

# Names the state folder of the one full cluster of this machine. It is gone after a reboot, as is the cluster.
POINTER = Path("/run/specserve-devcluster")


@dataclass(frozen=True)
class State:
    """The record of one cluster; written before anything outside its folder is touched."""

    folder: Path
    endpoint: Endpoint
    node: str | None
    complete: bool = False
    sysctls: Mapping[str, str] = field(default_factory=dict)
    made_folders: tuple[str, ...] = ()

    @property
    def audit_log(self) -> Path:
        """One JSON event per line for every write to the API server."""
        return self.folder / "log" / "audit.log"

    @property
    def pki_folder(self) -> Path:
        """Certificates, tokens, kubeconfigs."""
        return self.folder / "pki"

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig."""
        return self.pki_folder / "admin.kubeconfig"

    @property
    def records(self) -> Path:
        """The folder of the started components' records."""
        return self.folder / "run"

    def log(self, component: str) -> Path:
        """The log file of one component."""
        return self.folder / "log" / f"{component}.log"

    def running(self) -> dict[str, Running]:
        """Every component that was started, alive or not."""
        return processes.load(self.records)

    def living(self) -> list[Identity]:
        """The components that still run."""
        return [running.identity for running in self.running().values() if running.identity.alive]

    def save(self) -> None:
        """Write the record, whole or not at all."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        data = asdict(self) | {"folder": str(self.folder)}
        partial = self.folder / ".state"
        partial.write_text(json.dumps(data, indent=1))
        partial.rename(self.folder / "state.json")


def read_state(folder: Path) -> State | None:
    """The record of the cluster in `folder`; None where there is none."""
    path = folder / "state.json"
    if not path.exists():
        return None
    data = json.loads(path.read_text())
    data |= {"folder": folder, "endpoint": Endpoint(**data["endpoint"]), "made_folders": tuple(data["made_folders"])}
    return State(**data)


def default_folder() -> Path:
    """Where the full cluster keeps its state unless told otherwise."""
    base = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(base).expanduser() / "specserve" / "cluster"


def full_cluster_folder() -> Path | None:
    """The state folder of the full cluster that was started on this machine, whole or half."""
    return POINTER.readlink() if POINTER.is_symlink() else None


@contextmanager
def exclusive(name: str | Path) -> Iterator[None]:
    """At most one `up` or `down` of a thing at a time; a second is told at once."""
    path = cache_root() / "locks" / f"cluster-{key_of(str(name))}.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            handle.seek(0)
            raise DevclusterError(
                f"another up or down of this cluster is at work (process {handle.read().strip() or '?'}); "
                "wait for it, or interrupt it and run `down`"
            ) from None
        handle.truncate(0)
        handle.write(str(os.getpid()))
        handle.flush()
        yield
