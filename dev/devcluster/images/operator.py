"""The operator's image: Debian's Python, the locked dependencies, the packages of this checkout."""

from __future__ import annotations

import platform
import subprocess
from pathlib import Path

from devcluster.binaries import unpack_packages
from devcluster.cache import Progress, key_of, made_once
from devcluster.errors import DevclusterError
from devcluster.image import ImageConfig, LayerWriter, write_image
from devcluster.python import ensure_uv

OPERATOR_IMAGE = "specserve.local/operator:dev"
ROOT = Path(__file__).resolve().parents[3]
LOCK = ROOT / "locks" / "operator.txt"
PACKAGES = (ROOT / "operator" / "specserve_operator", ROOT / "profiler_job" / "specserve_profiler")
SUITE, PYTHON_VERSION = "bookworm", "3.11"
DEBIAN = ("python3-minimal", "libpython3-stdlib", "ca-certificates")
SITE = "opt/specserve"
_USER = "65532:65532"


def ensure_operator_image(progress: Progress) -> Path:
    """The archive, written now where the cache lacks it. A change of our code alone takes seconds."""
    base = _ensure_base(progress)
    sources = [path for package in PACKAGES for path in sorted(package.rglob("*")) if _ships(path)]
    key = key_of(base.name, Path(__file__).read_bytes(), *(part for path in sources for part in _named(path)))

    def make(folder: Path) -> None:
        with LayerWriter(folder / "code.tar") as writer:
            for path in sources:
                writer.file(f"{SITE}/{path.relative_to(_root_of(path))}", path.read_bytes())
        config = ImageConfig(
            entrypoint=["/usr/bin/python3", "-m", "specserve_operator"],
            env={"PATH": "/usr/bin:/bin", "PYTHONPATH": f"/{SITE}", "PYTHONUNBUFFERED": "1"},
            user=_USER,
        )
        layers = [base / "base.tar", folder / "code.tar"]
        write_image(folder / "operator.tar", OPERATOR_IMAGE, layers, config)

    return made_once("image-operator", key, make, progress) / "operator.tar"


def _ships(path: Path) -> bool:
    return path.is_file() and "__pycache__" not in path.parts


def _root_of(path: Path) -> Path:
    return next(package.parent for package in PACKAGES if path.is_relative_to(package))


def _named(path: Path) -> tuple[str, bytes]:
    return str(path.relative_to(ROOT)), path.read_bytes()


def _ensure_base(progress: Progress) -> Path:
    """Debian's Python and the dependencies, byte-compiled, as one layer."""

    def make(folder: Path) -> None:
        tree = folder / "tree"
        _debootstrap(folder, tree, progress)
        progress("operator image: installing the locked dependencies")
        target = tree / SITE
        subprocess.run(
            [ensure_uv(progress), "pip", "install", "--quiet", "--no-deps", "--require-hashes", "--requirements", LOCK,
             "--target", target, "--python-version", PYTHON_VERSION, "--only-binary", ":all:",
             "--python-platform", f"{platform.machine()}-manylinux_2_28"],
            check=True,
        )  # fmt: skip
        # The container's file system is read-only: what is not compiled now is compiled at every start.
        subprocess.run(["chroot", tree, "/usr/bin/python3", "-m", "compileall", "-q", f"/{SITE}"], check=True)
        with LayerWriter(folder / "base.tar") as writer:
            for part in ("bin", "etc", "lib", "lib64", "opt", "sbin", "usr"):
                writer.copy(tree / part, f"/{part}")
            for mount_point in ("dev", "proc", "sys", "run", "var"):
                writer.folder(f"/{mount_point}")
            writer.folder("/tmp", 0o1777)
        subprocess.run(["rm", "-rf", tree], check=True)

    key = key_of(LOCK.read_bytes(), Path(__file__).read_bytes(), platform.machine())
    return made_once("image-operator-base", key, make, progress)


def _debootstrap(folder: Path, tree: Path, progress: Progress) -> None:
    tool = folder / "mmdebstrap"
    unpack_packages(["mmdebstrap"], tool, progress)
    progress(f"operator image: Debian {SUITE} with Python {PYTHON_VERSION}")
    command: list[str | Path] = ["perl", tool / "usr/bin/mmdebstrap", "--variant=extract", "--mode=root", "--quiet",
               f"--include={','.join(DEBIAN)}", SUITE, tree]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    subprocess.run(["rm", "-rf", tool], check=True)
    if done.returncode:
        raise DevclusterError(f"mmdebstrap could not make the operator's root file system:\n{done.stderr[-2000:]}")
