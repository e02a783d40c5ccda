"""Whoever can end a pod can write a termination message: none holds its reader, or takes its memory."""

import base64
import json
import os
import subprocess
import sys
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.soak import runs
from tests.unit.profiler.contract.fuzz_messages import PACKED, framed, nested

from specserve_profiler.contract import message
from specserve_profiler.contract.message import TerminationError, decode
from specserve_profiler.contract.profile import Profile

HERE = Path(__file__).parent
COUNT = runs(3000, 100_000)
MEASURED, ACCEPTANCE, GRID = 3, 6, 4


def packed(*path: int, value: Any) -> str:
    """A message of release 0.1 with a value put at a place inside."""
    return framed(json.dumps(put(PACKED[0], path, value)))


def put(content: Any, path: Sequence[int], value: Any) -> Any:
    if not path:
        return value
    copy = list(content)
    copy[path[0]] = put(copy[path[0]], path[1:], value)
    return copy


CONTRASTS = put(PACKED[0], (MEASURED, 7), [[], [0.1] * 15])


def test_messages_that_are_foreign_cut_or_altered_stay_within_bounds_of_time_and_memory() -> None:
    """At most 50 ms of CPU a message and a minute beside, and 64 MiB above what the process began with."""
    done = subprocess.run(
        [sys.executable, HERE / "fuzz_messages.py", str(COUNT)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
    )

    assert done.returncode == 0, done.stderr[-2000:]
    outcome = json.loads(done.stdout)
    assert outcome["Profile"] + outcome["Failure"] + outcome["TerminationError"] == COUNT
    assert outcome["Profile"] > COUNT // 100 and outcome["TerminationError"] > COUNT // 2
    assert outcome["longestText"] < 700


def test_the_messages_that_are_changed_are_good_ones() -> None:
    assert [type(decode(framed(json.dumps(content)))) for content in PACKED] == [Profile, Profile]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        pytest.param(packed(MEASURED, ACCEPTANCE, 5, 1, value=[10**9, 5]), "index out of range", id="power of ten"),
        pytest.param(
            packed(MEASURED, GRID, value=[[1] * 30_000, [1] * 30_000, [], [], [], [], []]),
            "does not end within 65536 bytes",
            id="sizes times K, too long",
        ),
        pytest.param(
            packed(MEASURED, GRID, value=[[1] * 9000, [1] * 9000, [], [], [], [], []]),
            "0 values where 81000000 belong",
            id="sizes times K",
        ),
        pytest.param(
            framed(json.dumps(put(CONTRASTS, (MEASURED, ACCEPTANCE, 0), [1] * 20_000))),
            "15 values where 199990000 belong",
            id="pairs of K",
        ),
        pytest.param(framed("[" * 60_000), "recursion", id="depth"),
        pytest.param(framed("[" * 100_000), "does not end within 65536 bytes", id="depth, too long"),
        pytest.param(framed("9" * 5000), "a number has 5000 digits", id="digits"),
        pytest.param(framed(json.dumps(nested(900))), "not enough values", id="a nest"),
        pytest.param(packed(MEASURED, GRID, 4, 0, value=float("inf")), "Infinity is no number", id="infinity"),
        pytest.param(packed(MEASURED, GRID, 4, 0, value=1e-320), "greater than or equal to 0.000001", id="denormal"),
        pytest.param(packed(2, value=10**12), "year 33658 is out of range", id="year"),
        pytest.param(message._frame("failure", "[" * 3000), "recursion limit", id="failure"),
        pytest.param("specserve:3:profile:5:0123456789ab:" + "0" * 5000, "no more than 4096 are one", id="length"),
    ],
)
def test_a_message_with_a_valid_digest_that_would_hold_its_reader_is_refused(text: str, why: str) -> None:
    with pytest.raises(TerminationError, match=why):
        decode(text)


def test_no_end_of_the_deflated_text_is_no_profile() -> None:
    whole = zlib.compress(json.dumps(PACKED[0]).encode())
    with pytest.raises(TerminationError, match="does not end"):
        decode(message._frame("profile", base64.b85encode(whole[:-4]).decode()))
