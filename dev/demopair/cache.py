"""Where the built pair lies. Needs no torch."""

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

# What decides the weights and the files; a change in one of them asks for a new build.
_SOURCES = ("grammar.py", "corpus.py", "recipe.py", "tokenizer.py", "training.py", "build.py")


@dataclass(frozen=True)
class Pair:
    """The files of a pair below its folder."""

    folder: Path

    @property
    def target(self) -> Path:
        return self.folder / "target"

    @property
    def draft(self) -> Path:
        return self.folder / "draft"

    @property
    def profile_prompts(self) -> Path:
        return self.folder / "profile-prompts.jsonl"

    @property
    def heldout_prompts(self) -> Path:
        return self.folder / "heldout-prompts.jsonl"

    @property
    def facts(self) -> Path:
        return self.folder / "facts.json"


def cache_dir() -> Path:
    """The pair's folder, built or not, named by the hash of the sources, in $SPECSERVE_CACHE or ~/.cache/specserve."""
    root = Path(os.environ.get("SPECSERVE_CACHE") or "~/.cache/specserve").expanduser()
    digest = hashlib.sha256()
    for name in _SOURCES:
        digest.update((Path(__file__).parent / name).read_bytes())
    return root / f"demopair-{digest.hexdigest()[:12]}"


def built_pair() -> Pair:
    """The built pair. Raises FileNotFoundError that says how to build it."""
    folder = cache_dir()
    if not folder.exists():
        raise FileNotFoundError(f"no demo pair at {folder}; build it with `python -m demopair build`")
    return Pair(folder)
