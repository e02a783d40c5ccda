"""Reads so many foreign messages, within limits on time and memory: ``fuzz_messages.py COUNT``. See test_message_fuzz.

Every one begins as a message of release 0.1. Bits are flipped, ends are cut off, or the list inside is changed by what
its grammar allows and by what no profiler writes; those get a valid length and digest. Prints what came out, as JSON.
"""

import base64
import json
import resource
import sys
import time
import zlib
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

from specserve_profiler.contract.message import TerminationError, _frame, decode

SAMPLES = Path(__file__).parents[3] / "data" / "release-0.1"
MESSAGES = [(SAMPLES / f"{name}.message").read_text(encoding="utf-8") for name in ("profile", "largest", "failure")]
HEADER = 5
"""Parts of a message before its body are divided by so many colons."""


MOST_MORE = 64 * 2**20
"""Bytes of memory that reading one message may take beside what the process has when it begins."""


def inside(message: str) -> Any:
    return json.loads(zlib.decompress(base64.b85decode(message.split(":", HEADER)[HEADER])))


PACKED = [inside(message) for message in MESSAGES[:2]]
UNLIMITED = resource.RLIM_INFINITY


def framed(content: str) -> str:
    return _frame("profile", base64.b85encode(zlib.compress(content.encode(), 9)).decode())


def hostile(random: Random) -> Any:
    """Something that no profiler writes, or not there."""
    many = random.choice((3, 3, 3, 17, 17, 17, 300, 300, 300, 30_000, 100_000))
    return random.choice(
        (
            lambda: None,
            lambda: random.choice((True, "", "None", {}, [], {"k": 1}, [[]], "\ud800", "9" * 50)),
            lambda: random.choice((0, -1, 1, 17, 99, 10**9, 2**63, 10**300, -(10**40))),
            lambda: random.choice((0.5, -0.5, 1e-320, 1e308, -1e308, float("inf"), float("nan"))),
            lambda: [random.choice((0, 1, 2, 10**9))] * many,
            lambda: list(range(many)),
            lambda: [[1] * 3] * (many // 3),
            lambda: "x" * many,
            lambda: nested(min(many, 300)),
        )
    )()


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def changed(value: Any, random: Random) -> Any:
    """A copy with one part of it another one."""
    if not isinstance(value, list) or not value or random.random() < 0.1:
        return hostile(random)
    copy = list(value)
    at = random.randrange(len(copy))
    act = random.randrange(12)
    if act == 0:
        del copy[at]
    elif act == 1:
        copy.insert(at, copy[at])
    elif act == 2:
        copy = copy * random.choice((2, 9)) if len(copy) < 20 else copy[::-1]
    else:
        copy[at] = changed(copy[at], random)
    return copy


def grammatical(random: Random) -> str:
    content = random.choice(PACKED)
    for _ in range(random.choice((1, 1, 1, 2, 5))):
        content = changed(content, random)
    return framed(json.dumps(content))


def literal(random: Random) -> str:
    """Text that is made for parsers."""
    many = random.choice((10, 1000, 100_000, 1_000_000))
    return framed(random.choice(("[" * many, "9" * many, '{"a":' * many, "[" + "1," * many + "1]", " " * many)))


def flipped(random: Random) -> str:
    data = bytearray(random.choice(MESSAGES).encode())
    for _ in range(random.choice((1, 3, 30))):
        data[random.randrange(len(data))] ^= 1 << random.randrange(8)
    return data.decode(errors="replace")


def redigested(random: Random) -> str:
    """Bits of the deflated text flipped, its digest right."""
    data = bytearray(base64.b85decode(random.choice(MESSAGES[:2]).split(":", HEADER)[HEADER]))
    data[random.randrange(len(data))] ^= 1 << random.randrange(8)
    return _frame("profile", base64.b85encode(bytes(data)).decode())


def cut(random: Random) -> str:
    message = random.choice(MESSAGES)
    return message[: random.randrange(len(message))]


def failed(random: Random) -> str:
    body = {"reason": random.choice(("EngineFailed", hostile(random))), "message": hostile(random)}
    return _frame("failure", json.dumps(random.choice((body, body, hostile(random)))))


MAKERS = (grammatical,) * 12 + (flipped, redigested, cut, failed)


def main(count: int) -> None:
    """Ends by a signal or a MemoryError where a message takes what it may not."""
    random = Random(1)  # noqa: S311 - the same messages every time
    resource.setrlimit(resource.RLIMIT_CPU, (60 + count // 20, UNLIMITED))
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    outcomes: Counter[str] = Counter()
    slowest, longest = 0.0, 0
    for index in range(count):
        maker = literal if index % 200 == 0 else random.choice(MAKERS)
        message = maker(random)
        resource.setrlimit(resource.RLIMIT_AS, (used + MOST_MORE, UNLIMITED))
        began = time.process_time()
        try:
            outcomes[type(decode(message)).__name__] += 1
        except TerminationError as error:
            if isinstance(error.__cause__, MemoryError):
                raise
            outcomes["TerminationError"] += 1
            longest = max(longest, len(str(error)))
        slowest = max(slowest, time.process_time() - began)
        resource.setrlimit(resource.RLIMIT_AS, (UNLIMITED, UNLIMITED))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    facts = {"slowestMs": round(1000 * slowest), "peakMiB": round(peak), "longestText": longest}
    sys.stdout.write(json.dumps({**outcomes, **facts}) + "\n")


if __name__ == "__main__":
    main(int(sys.argv[1]))
