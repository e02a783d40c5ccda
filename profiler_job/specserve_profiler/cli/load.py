"""Profiles from where people have them: a file that ``run`` wrote, a Job's log, standard input."""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import ValidationError

from specserve_profiler.cli.faults import FaultError, clipped, explain
from specserve_profiler.cli.logs import LogError, profile_in
from specserve_profiler.contract.bounded import read_bounded
from specserve_profiler.contract.model import SCHEMA_VERSION
from specserve_profiler.contract.profile import PartialProfile, Profile
from specserve_profiler.dialect import support

_UTF16 = (b"\xff\xfe", b"\xfe\xff")
"""How a file begins that PowerShell's ``>`` wrote."""


def read_text(path: Path, flag: str = "") -> str:
    """The text of a file, ``-`` for standard input. Raises FaultError, whose text begins with ``flag``."""
    try:
        content = read_bounded(path)
    except OSError as error:
        raise FaultError(f"{flag}{path} cannot be read: {error.strerror}") from error
    try:
        return content.decode("utf-16" if content.startswith(_UTF16) else "utf-8-sig")
    except UnicodeDecodeError as error:
        raise FaultError(f"{flag}{path} is no text: {error}") from error


def read_profile(path: Path) -> Profile | PartialProfile:
    """A profile or a partial one. Raises FaultError, in words that say what is wrong with it."""
    return parse_profile(read_text(path), str(path))


def read_finished(path: Path) -> Profile:
    """A profile with a decision. Raises FaultError for a partial one."""
    profile = read_profile(path)
    if isinstance(profile, PartialProfile):
        why = clipped(profile.partial, 300)
        raise FaultError(f"{path} is a partial profile ({why}): it has no decision; measure it again")
    return profile


def parse_profile(text: str, name: str) -> Profile | PartialProfile:
    """A profile from JSON, or from a log of a Job that holds one between two marks. Raises FaultError."""
    try:
        content = json.loads(profile_in(text) or text)
    except LogError as error:
        raise FaultError(f"{name} is no profile: {error}") from error
    except (ValueError, RecursionError) as error:
        raise FaultError(f"{name} is no profile: not JSON: {error}") from error
    if not isinstance(content, dict) or "measurements" not in content:
        raise FaultError(
            f"{name} is no profile: it has no measurements; give a file that `specserve-profile run -o` wrote"
            + about_figures(content, name)
        )
    version = content.get("schemaVersion", SCHEMA_VERSION)
    if isinstance(version, bool) or not isinstance(version, int):
        raise FaultError(
            f"{name} is no profile: schemaVersion: must be a number, such as {SCHEMA_VERSION} without quotes, "
            f"is {clipped(json.dumps(version))}"
        )
    if version != SCHEMA_VERSION:
        raise FaultError(
            f"{name} is a profile of schema version {clipped(str(version))}, this tool reads version {SCHEMA_VERSION}: "
            "measure again, or use the specserve that wrote it"
        )
    model: type[Profile] | type[PartialProfile] = PartialProfile if "partial" in content else Profile
    try:
        return model.model_validate(content)
    except ValidationError as error:
        raise FaultError(f"{name} is no profile: {explain(error, model)}") from error


def about_figures(content: object, name: str) -> str:
    """The way out for a file of figures in place of a profile or a table; empty for any other content."""
    is_grid = isinstance(content, dict) and not {"itlMs", "tokensPerSecond"}.isdisjoint(content)
    return f"; its figures make a table: specserve-profile table --grid {name}" if is_grid else ""


def vllm_version(given: str | None) -> str | None:
    """The value of ``--vllm-version``. Raises FaultError where it is none."""
    if given is not None and support.version(given) is None:
        raise FaultError(f"--vllm-version: {given!r}: give one such as 0.33.0")
    return given
