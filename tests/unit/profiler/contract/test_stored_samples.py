"""What release 0.1 wrote is read for ever: profiles, termination messages, and keys that stay as they are.

The files were written by that release's own code; ``measured.*`` is a Job's real result, with a real vLLM on a CPU.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.builders import NAMESPACE

from specserve_operator.api.records import ConfigMap
from specserve_operator.decide.profiles import stored_profiles
from specserve_profiler.cli.load import read_profile
from specserve_profiler.contract.key import KeyInputs, profile_key
from specserve_profiler.contract.message import decode, encode
from specserve_profiler.contract.profile import Failure, PartialProfile, Profile, short_table

SAMPLES = Path(__file__).parents[3] / "data" / "release-0.1"
KEYS: list[dict[str, Any]] = json.loads((SAMPLES / "keys.json").read_text(encoding="utf-8"))


def text(name: str) -> str:
    return (SAMPLES / name).read_text(encoding="utf-8")


def test_a_stored_profile_is_read_and_written_again_as_it_was() -> None:
    found = Profile.model_validate_json(text("profile.json"))

    assert found.to_json() + "\n" == text("profile.json")
    assert found.schema_version == 2 and found.request is not None
    assert found.request.weights == {1: 3, 64: 1.5}
    assert short_table(found.decision.table) == "1-8:5 9-40:3 41-120:2 121-256:1"
    assert read_profile(SAMPLES / "profile.json") == found


def test_a_stored_partial_profile_is_read_and_written_again_as_it_was() -> None:
    found = read_profile(SAMPLES / "partial.json")

    assert isinstance(found, PartialProfile)
    assert found.partial.startswith("TimedOut: no profile within 3580 s")
    assert found.to_json() + "\n" == text("partial.json")


def test_what_a_job_really_measured_is_read_from_its_log_and_from_its_message() -> None:
    logged, left = read_profile(SAMPLES / "measured.log"), decode(text("measured.message"))

    assert isinstance(logged, Profile) and isinstance(left, Profile)
    assert logged.request is not None and logged.request.engine.max_num_seqs == 8
    assert left.decision.table == logged.decision.table and logged.decision.table[-1].last == 8
    assert left.decision.reason == logged.decision.reason
    assert [cell.k for cell in logged.measurements.grid] == [cell.k for cell in left.measurements.grid]


@pytest.mark.parametrize(("name", "cells"), [("profile", 54), ("largest", 144)])
def test_a_profile_in_a_message_is_read_and_said_again_as_it_was(name: str, cells: int) -> None:
    found = decode(text(f"{name}.message"))

    assert isinstance(found, Profile)
    assert len(found.measurements.grid) == cells
    assert encode(found) == text(f"{name}.message")


def test_a_failure_in_a_message_is_read_and_said_again_as_it_was() -> None:
    found = decode(text("failure.message"))

    assert found == Failure(
        reason="EngineFailed", message="vLLM ended with exit code 1: ValueError: 模型 is no model. Check model.name."
    )
    assert encode(found) == text("failure.message")


@pytest.mark.parametrize("sample", KEYS, ids=[sample["of"] for sample in KEYS])
def test_a_key_stays_the_same_for_ever(sample: dict[str, Any]) -> None:
    """Another one would measure a whole fleet again."""
    assert profile_key(KeyInputs.model_validate(sample["inputs"])) == sample["key"]


def test_the_samples_are_of_keys_that_differ() -> None:
    assert len({sample["key"] for sample in KEYS}) == 18


def test_a_profile_that_the_operator_stored_is_used_from_its_config_map() -> None:
    config_map = ConfigMap.read(json.loads(text("configmap.json")))

    shelf = stored_profiles([config_map])

    assert shelf.problems == {} and shelf.outdated == {}
    ((stored,),) = shelf.valid.values()
    assert stored.inputs is not None and profile_key(stored.inputs) == stored.key == config_map.key
    assert json.loads(text("configmap.json"))["metadata"]["namespace"] == NAMESPACE
