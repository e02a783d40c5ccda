"""The programs the cluster runs: built from Go modules, and unpacked (never installed) from Debian packages."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from devcluster.cache import Progress, key_of, made_once, require_free_space
from devcluster.errors import DevclusterError

KUBERNETES_VERSION = "v1.34.4"
GO_FOLDER = Path(__file__).parent / "go"
DEBIAN_PACKAGES = (
    "busybox-static",
    "conntrack",
    "containerd",
    "containernetworking-plugins",
    "iproute2",
    "iptables",
    "runc",
)
_IPTABLES_NAMES = ("iptables", "iptables-save", "iptables-restore", "ip6tables", "ip6tables-save", "ip6tables-restore")


@dataclass(frozen=True)
class GoModule:
    """A folder below go/ whose programs `go install` makes."""

    name: str
    targets: tuple[str, ...]
    programs: tuple[str, ...]
    ldflags: str = "-s -w"
    renames: tuple[tuple[str, str], ...] = ()


_VERSION_PACKAGE = "k8s.io/component-base/version"
GO_MODULES = (
    GoModule(
        "kubernetes",
        ("tool",),
        ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy", "kubectl"),
        f"-s -w -X {_VERSION_PACKAGE}.gitVersion={KUBERNETES_VERSION} "
        f"-X {_VERSION_PACKAGE}.gitMajor=1 -X {_VERSION_PACKAGE}.gitMinor=34",
    ),
    GoModule("etcd", ("tool",), ("etcd",), renames=(("server", "etcd"),)),
    GoModule("helm", ("tool",), ("helm",)),
    GoModule("pause", ("./...",), ("pause",)),
)


@dataclass(frozen=True)
class Binaries:
    """Where the programs are."""

    go: dict[str, Path]
    debian: Path | None

    def path(self, program: str) -> Path:
        """The absolute path of one Go program, such as `kubelet`."""
        return self.go[program]

    @property
    def cni_folder(self) -> Path:
        """The folder of the CNI plugins."""
        return self._debian / "usr/lib/cni"

    @property
    def runc(self) -> Path:
        """The absolute path of runc."""
        return self._debian / "usr/sbin/runc"

    @property
    def busybox(self) -> Path:
        """The absolute path of the static busybox."""
        return self._debian / "bin/busybox"

    @property
    def environment(self) -> dict[str, str]:
        """Variables under which both kinds of program find each other and their libraries."""
        search = [str(folder) for folder in sorted({path.parent for path in self.go.values()})]
        env = {"HOME": os.environ.get("HOME", "/root")}
        if self.debian is not None:
            libraries = self.debian / "usr/lib" / f"{platform.machine()}-linux-gnu"
            search += [str(self.debian / part) for part in ("usr/sbin", "usr/bin", "sbin", "bin")]
            env |= {"LD_LIBRARY_PATH": str(libraries), "XTABLES_LIBDIR": str(libraries / "xtables")}
        return env | {"PATH": ":".join([*search, os.environ.get("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")])}

    @property
    def _debian(self) -> Path:
        if self.debian is None:
            raise DevclusterError("this needs the Debian packages, which a control plane alone does not unpack")
        return self.debian


def ensure_binaries(progress: Progress, *, node: bool = True, helm: bool = False) -> Binaries:
    """Every program, built or unpacked now where the cache lacks it.

    `node=False` leaves out what only a node needs (the Debian packages and pause). A cold build of everything takes
    about 8 minutes on 2 cores and 4 GB of disk.
    """
    wanted = {"kubernetes", "etcd"} | ({"pause"} if node else set()) | ({"helm"} if helm else set())
    go: dict[str, Path] = {}
    for module in GO_MODULES:
        if module.name in wanted:
            folder = _ensure_go(module, progress)
            go |= {program: folder / program for program in module.programs}
    needs_debian = node or not shutil.which("openssl")
    return Binaries(go, _ensure_debian(progress) if needs_debian else None)


def _ensure_go(module: GoModule, progress: Progress) -> Path:
    source = GO_FOLDER / module.name
    recipe = [file.read_bytes() for file in sorted(source.iterdir()) if file.suffix in {".mod", ".sum", ".go"}]
    key = key_of(repr(module), platform.machine(), *recipe)

    def make(folder: Path) -> None:
        require_free_space(folder, 1 if module.name == "pause" else 5)
        env = os.environ | {"GOBIN": str(folder), "CGO_ENABLED": "0", "GOFLAGS": "-mod=readonly"}
        command = [_go(), "install", "-ldflags", module.ldflags, *module.targets]
        progress(f"{module.name}: go install (minutes when the Go build cache is cold)")
        code, errors = _told_to_the_end(command, source, env, f"{module.name}: still building", progress)
        if code:
            raise DevclusterError(f"building {module.name} failed:\n{errors[-3000:]}")
        for old, new in module.renames:
            (folder / old).rename(folder / new)
        missing = [program for program in module.programs if not (folder / program).is_file()]
        if missing:
            raise DevclusterError(f"building {module.name} made no {', '.join(missing)}")

    return made_once(module.name, key, make, progress)


def _told_to_the_end(
    command: list[str], folder: Path, env: dict[str, str], text: str, progress: Progress
) -> tuple[int, str]:
    """Exit code and errors of a long command that says nothing itself; ``text`` is told every half minute."""
    with subprocess.Popen(command, cwd=folder, env=env, stderr=subprocess.PIPE, text=True) as process:
        while True:
            try:
                _, errors = process.communicate(timeout=30)
            except subprocess.TimeoutExpired:
                progress(text)
            else:
                return process.returncode, errors


def _go() -> str:
    found = shutil.which("go") or shutil.which("/usr/local/go/bin/go")
    if not found:
        raise DevclusterError(
            "the Go toolchain (1.26 or newer) is not on PATH; install it and put its bin folder there"
        )
    return found


def _ensure_debian(progress: Progress) -> Path:
    packages = sorted({*DEBIAN_PACKAGES, *([] if shutil.which("openssl") else ["openssl"])})
    key = key_of(os_release_codename(), platform.machine(), *packages)

    def make(folder: Path) -> None:
        unpack_packages(packages, folder, progress)
        sbin = folder / "usr/sbin"
        for name in _IPTABLES_NAMES:  # the package leaves these to update-alternatives, which never runs here
            (sbin / name).unlink(missing_ok=True)
            (sbin / name).symlink_to("xtables-nft-multi")
        needed = (
            "usr/bin/containerd",
            "usr/sbin/runc",
            "usr/sbin/xtables-nft-multi",
            "usr/lib/cni/ptp",
            "bin/busybox",
        )
        missing = [name for name in needed if not (folder / name).exists()]
        if missing:
            raise DevclusterError(f"the Debian packages brought no {', '.join(missing)}")

    return made_once("debian", key, make, progress)


def unpack_packages(packages: list[str], folder: Path, progress: Progress) -> None:
    """Download Debian packages, with the dependencies that this machine lacks, and unpack them into `folder`.

    Nothing is installed, no service starts. The package lists are updated once if the first try fails.
    """
    if not shutil.which("apt-get"):
        raise DevclusterError(f"apt-get is missing: {', '.join(packages)} come from Debian; use a Debian-based machine")
    archives = folder.parent / f".archives-{folder.name}"
    shutil.rmtree(archives, ignore_errors=True)
    (archives / "partial").mkdir(parents=True)
    download = [
        *("apt-get", "install", "-y", "-q", "--reinstall", "--download-only", "--no-install-recommends"),
        *("-o", f"Dir::Cache::archives={archives}", "-o", "APT::Sandbox::User=root", *packages),
    ]
    try:
        progress(f"downloading {', '.join(packages)}")
        done = subprocess.run(download, capture_output=True, text=True, check=False)
        if done.returncode:
            subprocess.run(["apt-get", "update", "-q"], capture_output=True, check=False)
            done = subprocess.run(download, capture_output=True, text=True, check=False)
        if done.returncode:
            raise DevclusterError(f"apt-get could not download the packages:\n{(done.stdout + done.stderr)[-2000:]}")
        for archive in sorted(archives.glob("*.deb")):
            subprocess.run(["dpkg", "-x", archive, folder], check=True)
    finally:
        shutil.rmtree(archives, ignore_errors=True)


def os_release_codename() -> str:
    """The distribution's release name, such as `bookworm`; `unknown` where /etc/os-release does not say."""
    release = Path("/etc/os-release")
    found = re.search(r"^VERSION_CODENAME=(\S+)", release.read_text(), re.M) if release.exists() else None
    return found[1] if found else "unknown"
