"""Reads the prompts of a workload: a file, or a dataset of a Hugging Face hub.

Blocking, so the profiler calls it from a thread. What the hub's own client honours applies: ``HF_ENDPOINT``,
``HF_TOKEN``, ``HF_HOME``, ``HF_HUB_OFFLINE`` (then the dataset must be in the cache).
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from specserve_profiler.contract.bounded import read_bounded
from specserve_profiler.contract.reasons import ProfilingError, of_disk
from specserve_profiler.contract.request import HubDataset
from specserve_profiler.prompts.entries import Entry, collect, csv_rows, parse

ENOUGH_ROWS = 10_000
"""No further file of a dataset is downloaded once it has this many."""
MOST_BYTES = 1 << 30
"""Of a file of prompts."""
_SUFFIXES = (".jsonl", ".json", ".csv", ".parquet")
_SPLITS = frozenset({"train", "test", "validation", "valid", "val", "dev", "eval"})
_OTHER_WAY = "or download the dataset and give it as a file (path, or a ConfigMap)"


def read_file(path: Path) -> tuple[list[Entry], int]:
    """The prompts of a file and how many entries of it have none (``entries.parse``). Raises ProfilingError."""
    try:
        content = read_bounded(path, MOST_BYTES)
    except OSError as error:
        raise ProfilingError("PromptsInvalid", f"prompts {path} cannot be read: {error.strerror or error}") from error
    return parse(content, str(path), strict=True)


def read_hub(dataset: HubDataset, say: Callable[[str], None]) -> tuple[list[Entry], int]:
    """The prompts of a dataset's split and how many of its rows have none.

    With the ``datasets`` library where it is installed, else from the files in the dataset's repository that the split
    names. Raises ProfilingError: DatasetUnreachable, PromptsInvalid.
    """
    try:
        rows = _library_rows(dataset)
        if rows is not None:
            return collect(rows, f"dataset {dataset.name}", column=dataset.column)
        return _from_files(dataset, say)
    except ProfilingError:
        raise
    except Exception as error:  # the client passes on what httpx, requests, the library and the disk raise
        raise _unreachable(dataset, error) from error


def _library_rows(dataset: HubDataset) -> Iterator[tuple[str, Any]] | None:
    try:
        from datasets import load_dataset
    except ImportError:
        return None
    rows = load_dataset(dataset.name, dataset.config, split=dataset.split, revision=dataset.revision)
    return ((f"dataset {dataset.name}, row {number}", row) for number, row in enumerate(rows, 1))


def _from_files(dataset: HubDataset, say: Callable[[str], None]) -> tuple[list[Entry], int]:
    try:
        from huggingface_hub import hf_hub_download
        from huggingface_hub.utils import disable_progress_bars
    except ImportError as error:
        raise ProfilingError(
            "DatasetUnreachable", f"dataset {dataset.name}: install huggingface_hub here, {_OTHER_WAY}"
        ) from error
    disable_progress_bars()
    entries: list[Entry] = []
    without = 0
    for name in choose_files(_files(dataset), dataset):
        say(f"dataset {dataset.name}: {name}")
        path = hf_hub_download(dataset.name, name, repo_type="dataset", revision=dataset.revision)
        found, empty = _parse(Path(path), f"dataset {dataset.name}, {name}", dataset.column)
        entries += found
        without += empty
        if len(entries) >= ENOUGH_ROWS:
            break
    return entries, without


def _files(dataset: HubDataset) -> list[str]:
    """The files of the dataset's repository, of its copy in the cache where the client is offline."""
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.constants import HF_HUB_OFFLINE

    if not HF_HUB_OFFLINE:
        return list(HfApi().list_repo_files(dataset.name, repo_type="dataset", revision=dataset.revision))
    folder = Path(
        snapshot_download(dataset.name, repo_type="dataset", revision=dataset.revision, local_files_only=True)
    )
    return [path.relative_to(folder).as_posix() for path in sorted(folder.rglob("*")) if path.is_file()]


def choose_files(names: Sequence[str], dataset: HubDataset) -> list[str]:
    """The files of a split, sorted. Pure; the rule is the hub's own: a split is named in the path.

    A repository that names no split in any path is all ``train``. Raises ProfilingError (PromptsInvalid).
    """
    data = sorted(name for name in names if PurePosixPath(name).suffix in _SUFFIXES and not _is_about(name))
    if dataset.config is not None:
        data = [name for name in data if dataset.config in PurePosixPath(name).with_suffix("").parts] or [
            name for name in data if dataset.config in _words(name)
        ]
    split = [name for name in data if dataset.split in _words(name)]
    if not split and dataset.split == "train" and not any(_words(name) & _SPLITS for name in data):
        split = data
    if not split:
        there = ", ".join(data[:8]) or "none"
        raise ProfilingError(
            "PromptsInvalid",
            f"dataset {dataset.name}: no .jsonl, .json, .csv or .parquet file of split {dataset.split!r}"
            f"{f' and config {dataset.config!r}' if dataset.config else ''}; its data files: {there}",
        )
    return split


def _words(name: str) -> set[str]:
    return set(re.split(r"[^0-9A-Za-z]+", name))


def _is_about(name: str) -> bool:
    """Files about the dataset, not of it."""
    return PurePosixPath(name).name in {"dataset_infos.json", "dataset_info.json", "state.json"} or name.startswith(".")


def _parse(path: Path, name: str, column: str | None) -> tuple[list[Entry], int]:
    suffix = PurePosixPath(name).suffix
    if suffix == ".parquet":
        rows = ((f"{name}, row {number}", row) for number, row in enumerate(_parquet(path, name), 1))
        return collect(rows, name, column=column)
    content = path.read_bytes()
    if suffix == ".csv":
        text = io.StringIO(content.decode("utf-8-sig", errors="replace"), newline="")
        return collect(csv_rows(csv.DictReader(text), name), name, column=column)
    return parse(content, name, column=column)


def _parquet(path: Path, name: str) -> list[dict[str, Any]]:
    try:
        from pyarrow import parquet
    except ImportError as error:
        raise ProfilingError(
            "PromptsInvalid",
            f"{name} is a Parquet file: install pyarrow (or datasets) in the engine's image, {_OTHER_WAY}",
        ) from error
    rows: list[dict[str, Any]] = parquet.read_table(path).to_pylist()
    return rows


_WAYS_OUT = {
    "GatedRepoError": "it is gated: accept its terms on the hub and set HF_TOKEN",
    "RepositoryNotFoundError": "there is no such dataset, or it is private: check the name, set HF_TOKEN",
    "DatasetNotFoundError": "there is no such dataset, or it is private: check the name, set HF_TOKEN",
    "RevisionNotFoundError": "there is no such revision",
    "OfflineModeIsEnabled": "HF_HUB_OFFLINE is set and it is not in the cache: unset that",
    "LocalEntryNotFoundError": "it is not in the cache, and the hub is out of reach or HF_HUB_OFFLINE is set: "
    "allow the way there, set HF_ENDPOINT to a mirror",
    "HFValidationError": "that is no name of a dataset: give owner/name",
}
_ANY_OTHER = "the hub is out of reach from here: allow the way there, set HF_ENDPOINT to a mirror"


def _unreachable(dataset: HubDataset, error: Exception) -> ProfilingError:
    """What to do where a dataset cannot be had. By the names of classes: the client need not be there."""
    kinds = [kind.__name__ for kind in type(error).__mro__]
    if isinstance(error, OSError) and (full := of_disk(error)) is not None:
        return full
    if isinstance(error, ValueError) and not set(kinds) & set(_WAYS_OUT):
        # The library's words for a config or a split that is not there.
        return ProfilingError("PromptsInvalid", f"dataset {dataset.name}: {str(error)[:300]}")
    way = next((_WAYS_OUT[kind] for kind in kinds if kind in _WAYS_OUT), _ANY_OTHER)
    return ProfilingError(
        "DatasetUnreachable", f"dataset {dataset.name} cannot be read ({type(error).__name__}): {way}, {_OTHER_WAY}"
    )
