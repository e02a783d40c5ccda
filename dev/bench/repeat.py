"""`bench repeat`: profiles in a row, other load on one core during some, and how much their tables differ."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from bench import show
from bench.load import busy_core
from bench.pooled import pooled
from bench.regret import Repeat, repeats
from bench.setting import MAX_NUM_SEQS, Setting
from specserve_profiler.contract.model import Model
from specserve_profiler.contract.profile import Profile, short_table
from specserve_profiler.decision.evidence import Evidence
from specserve_profiler.statistics.acceptance import INDIFFERENCE


class Raw(Model):
    """The profiles of a run, and which of them were disturbed."""

    profiles: tuple[Profile, ...]
    loaded: tuple[int, ...]
    """Numbers of the profiles, from 1, that ran beside other load."""


@dataclass(frozen=True)
class Report:
    """What `bench repeat` found."""

    tables: tuple[str, ...]
    verdicts: tuple[str, ...]
    loaded: tuple[int, ...]
    batch_sizes: tuple[Repeat, ...]
    tie: float
    """Share of goodput within which K are as good as one another."""

    @property
    def share_alike(self) -> float:
        """Share of batch sizes at which all tables chose the same K."""
        return sum(not entry.differs for entry in self.batch_sizes) / len(self.batch_sizes)

    @property
    def share_within_ties(self) -> float:
        """Share of batch sizes at which no table gives away more than a tie."""
        return sum(entry.within(self.tie) for entry in self.batch_sizes) / len(self.batch_sizes)


def measure(setting: Setting, times: int, loaded: Collection[int], core: int) -> Raw:
    """``times`` profiles, one after the other."""
    profiles = []
    for number in range(1, times + 1):
        disturbed = number in loaded
        show.say(f"profile {number} of {times}{f', core {core} is busy' if disturbed else ''}")
        with busy_core(core) if disturbed else nullcontext():
            profiles.append(setting.profile())
    return Raw(profiles=tuple(profiles), loaded=tuple(sorted(loaded)))


def report(raw: Raw) -> Report:
    """How the tables differ, judged by all profiles pooled."""
    goodputs = Evidence.of(pooled(raw.profiles), MAX_NUM_SEQS).surface.goodputs
    decisions = [profile.decision for profile in raw.profiles]
    return Report(
        tables=tuple(short_table(decision.table) for decision in decisions),
        verdicts=tuple(decision.verdict for decision in decisions),
        loaded=raw.loaded,
        batch_sizes=tuple(repeats(goodputs, [decision.table for decision in decisions])),
        tie=INDIFFERENCE,
    )


def text(found: Report) -> str:
    """The report for a person."""
    numbers = range(1, len(found.tables) + 1)
    tables = show.table(
        ["profile", "other load", "verdict", "table"],
        [
            [number, "one core" if number in found.loaded else "none", verdict, rows]
            for number, verdict, rows in zip(numbers, found.verdicts, found.tables, strict=True)
        ],
    )
    differing = [entry for entry in found.batch_sizes if entry.differs]
    lost = show.table(
        ["batch size", "K of each profile", "most goodput lost", f"within {found.tie:.0%}"],
        [
            [entry.batch_size, _ks(entry.ks), show.percent(max(entry.lost)), "yes" if entry.within(found.tie) else "no"]
            for entry in differing
        ],
    )
    worst = max(max(entry.lost) for entry in found.batch_sizes)
    alike = (
        f"all tables alike at {found.share_alike:.0%} of batch sizes, none loses more than {found.tie:.0%} at "
        f"{found.share_within_ties:.0%}; the most that any loses is {show.percent(worst)}"
    )
    return "\n".join([tables, "", *([lost, ""] if differing else []), alike])


def _ks(ks: Sequence[int]) -> str:
    return " ".join(map(str, ks))


def run(setting: Setting, times: int, loaded: Collection[int], core: int, output: Path) -> None:
    """Profiles, writes the JSON, prints the report."""
    write(measure(setting, times, loaded, core), output)


def write(raw: Raw, output: Path) -> None:
    """Writes the JSON and prints the report."""
    found = report(raw)
    shares = {"shareAlike": found.share_alike, "shareWithinTies": found.share_within_ties}
    show.write_json(output, {"report": found, **shares, "raw": raw})
    print(text(found))
