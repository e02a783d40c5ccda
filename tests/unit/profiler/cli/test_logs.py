"""A Job's log as people have it: whatever kubectl and container runtimes put before its lines, the profile is found."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.unit.profiler.cli.doors import shell
from tests.unit.profiler.profiles_sample import partial, profile

from specserve_profiler.cli.faults import FaultError
from specserve_profiler.cli.load import parse_profile
from specserve_profiler.session.job import BEGIN, BEGIN_PARTIAL, END, END_PARTIAL

TIME = "2026-12-01T00:01:02.{:09d}Z"
POD = "[pod/specserve-0123456789ab-1-x7f2p/engine] "


def log(result: str = "", begin: str = BEGIN, end: str = END) -> list[str]:
    first = ["[specserve] 16 prompts", "[engine] (EngineCore pid=7) loading {weights}", "[engine] "]
    return [*first, begin, result or profile().to_json(), end, "[specserve] done {all}"]


def stamped(lines: list[str]) -> str:
    return "".join(f"{TIME.format(index)} {line}\n" for index, line in enumerate(lines))


def cri(lines: list[str], most: int = 1000) -> str:
    """As a CRI runtime writes a file: long lines in parts."""
    written = []
    for line in lines:
        parts = [line[at : at + most] for at in range(0, len(line), most)] or [""]
        written += [(part, "P") for part in parts[:-1]] + [(parts[-1], "F")]
    return "".join(f"2026-12-01T00:01:02.5+01:00 stdout {tag} {part}\n" for part, tag in written)


def docker(lines: list[str], most: int = 1000) -> str:
    """As docker's json-file driver does."""
    parts = []
    for line in lines:
        text = line + "\n"
        parts += [text[at : at + most] for at in range(0, len(text), most)]
    return "".join(json.dumps({"log": part, "stream": "stdout", "time": TIME.format(1)}) + "\n" for part in parts)


FORMS = {
    "plain": lambda lines: "\n".join(lines),
    "windows": lambda lines: "\r\n".join(lines),
    "timestamps": stamped,
    "prefix": lambda lines: "".join(f"{POD}{line}\n" for line in lines),
    "prefix and timestamps": lambda lines: "".join(f"{POD}{line}\n" for line in stamped(lines).splitlines()),
    "other containers": lambda lines: "".join(f"{POD}{line}\n[pod/x/proxy] {{200}}\n" for line in lines),
    "compose": lambda lines: "".join(f"engine-1  | {line}\n" for line in lines),
    "cri": cri,
    "docker": docker,
}


@pytest.mark.parametrize("form", FORMS)
def test_a_profile_is_found_in_a_log(form: str) -> None:
    early = log(partial().to_json(), BEGIN_PARTIAL, END_PARTIAL)

    assert parse_profile(FORMS[form](log()), "log") == profile()
    assert parse_profile(FORMS[form](early), "log") == partial()
    assert parse_profile(FORMS[form](log(partial().to_json()[:50]) + log()), "log") == profile()  # the last one


@pytest.mark.parametrize("form", FORMS)
def test_a_log_without_a_profile_says_what_it_says(form: str) -> None:
    failed = ["[specserve] 16 prompts", "[specserve] no profile: OutOfMemory: set VLLM_CPU_KVCACHE_SPACE"]

    with pytest.raises(FaultError, match="it says: no profile: OutOfMemory: set VLLM_CPU_KVCACHE_SPACE"):
        parse_profile(FORMS[form](failed), "log")
    with pytest.raises(FaultError, match="log is no profile: the log has no profile, nor a reason: it may not have"):
        parse_profile(FORMS[form](failed[:1]), "log")
    with pytest.raises(FaultError, match="the log ends within the profile: fetch all of it"):
        parse_profile(FORMS[form](log()[:5]), "log")


def test_a_log_comes_through_a_pipe_or_a_file_of_powershell(tmp_path: Path) -> None:
    (tmp_path / "log").write_text(stamped(log()))
    (tmp_path / "wide").write_text(stamped(log()), encoding="utf-16")

    piped = shell(f"cat {tmp_path}/log | profile report --text -")
    wide = shell(f"profile table --short {tmp_path}/wide")

    assert piped.returncode == 0 and "Verdict Dynamic" in piped.stdout
    assert (wide.returncode, wide.stdout) == (0, "1-8:5 9-40:3 41-120:2 121-256:1\n")


def test_what_nests_without_end_is_no_profile() -> None:
    with pytest.raises(FaultError, match="p is no profile: not JSON"):
        parse_profile("[" * 100_000, "p")
