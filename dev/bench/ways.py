"""`bench profile`: one boot per K against one boot for all, interleaved in one run on the real engine."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench import show
from bench.conventional import static_boot
from bench.order import OURS, interleaved
from bench.pooled import pooled
from bench.precision import (
    Agreement,
    Need,
    Ratio,
    Round,
    Way,
    against_baseline,
    agreements,
    between_ks,
    contenders,
    need,
    share_within,
    way,
)
from bench.regret import regret
from bench.rounds import StaticBoot, round_of_boots, round_of_profile
from bench.setting import MAX_NUM_SEQS, Setting
from specserve_profiler.contract.model import Model
from specserve_profiler.contract.profile import Profile
from specserve_profiler.decision.evidence import Evidence

CONTENDER = 0.05
"""Share of the best goodput within which a K is a contender."""
GOAL = 2.5
MOST_REGRET = 0.02


class RawRound(Model):
    """What one round measured."""

    ours: Profile
    boots: tuple[StaticBoot, ...]


class Raw(Model):
    """What all rounds measured: enough to make the report again."""

    kmax: int
    rounds: tuple[RawRound, ...]


def measure(setting: Setting, rounds: int, generations: int) -> Raw:
    """Both ways, interleaved. Takes (Kmax + 3) boots and twice the measuring time a round."""
    found = []
    for number, order in enumerate(interleaved(setting.kmax, rounds), 1):
        boots: list[StaticBoot] = []
        profile: Profile | None = None
        for item in order:
            show.say(f"round {number} of {rounds}: {'our way' if item == OURS else f'a boot with K = {item}'}")
            if isinstance(item, int):
                boots.append(asyncio.run(static_boot(setting, item, generations)))
            else:
                profile = setting.profile()
        assert profile is not None
        found.append(RawRound(ours=profile, boots=tuple(boots)))
    return Raw(kmax=setting.kmax, rounds=tuple(found))


@dataclass(frozen=True)
class Comparison:
    """What both ways take to know the same goodput ratios equally well."""

    ratios: str
    count: int
    ours: Way
    usual: Way
    ours_need: Need
    """To the half-width that the usual way has after one round."""
    usual_need: Need
    """To the half-width that ours has after one profile."""

    @property
    def times(self) -> float:
        """How many times longer the usual way takes to our half-width, as one profile of ours took it."""
        return self.usual_need.seconds / self.ours.seconds

    @property
    def times_at_theirs(self) -> float:
        """The same at the half-width of one round of the usual way, ours scaled."""
        return self.usual.seconds / self.ours_need.seconds


def compare(name: str, ours: Sequence[Round], usual: Sequence[Round], ratios: Sequence[Ratio]) -> Comparison:
    """Both ways on the same goodput ratios."""
    mine, theirs = way(ours, ratios), way(usual, ratios)
    return Comparison(name, len(ratios), mine, theirs, need(mine, theirs.half_width), need(theirs, mine.half_width))


@dataclass(frozen=True)
class Report:
    """What `bench profile` found."""

    rounds: int
    comparisons: tuple[Comparison, ...]
    validity: tuple[Agreement, ...]
    regret: dict[int, float]
    """Batch size -> largest loss of our tables against the exhaustive measurement; empty without one."""


def report(raw: Raw, exhaustive: Sequence[Profile]) -> Report:
    """The report of a run; ``exhaustive`` profiles are pooled into one long measurement."""
    ours = [round_of_profile(entry.ours) for entry in raw.rounds]
    usual = [round_of_boots(entry.boots) for entry in raw.rounds]
    sizes = ours[0].batch_sizes
    near = contenders([*ours, *usual], CONTENDER)
    comparisons = [
        compare("between any two K", ours, usual, between_ks(sizes, raw.kmax)),
        *([compare(f"between K within {CONTENDER:.0%} of the best", ours, usual, near)] if near else []),
        compare("against the baseline", ours, usual, against_baseline(sizes, raw.kmax)),
    ]
    lost: dict[int, float] = {}
    if exhaustive:
        goodputs = Evidence.of(pooled(exhaustive), MAX_NUM_SEQS).surface.goodputs
        tables = [regret(goodputs, entry.ours.decision.table) for entry in raw.rounds]
        lost = {size: max(table[size] for table in tables) for size in tables[0]}
    return Report(len(raw.rounds), tuple(comparisons), tuple(agreements(ours, usual, raw.kmax)), lost)


def text(found: Report) -> str:
    """The report for a person."""
    lines = [
        show.table(
            [
                "goodput ratios",
                "way",
                "boots s",
                "measuring s",
                "± in one round",
                "of it drift ±",
                "to the other's ± s",
            ],
            [row for entry in found.comparisons for row in _rows(entry)],
        ),
        "",
        f"From {found.rounds} rounds; ± is a 95 % half-width of a log ratio, root mean square over the ratios.",
    ]
    lines += [
        f"{entry.ratios} ({entry.count}): the usual way takes {entry.times:.2f} times as long to our interval "
        f"({entry.usual_need.repetitions} boots of each K), {entry.times_at_theirs:.2f} times at its own; goal {GOAL}"
        for entry in found.comparisons
    ]
    off = [entry for entry in found.validity if not entry.within]
    lines.append(
        f"validity: {share_within(found.validity):.0%} of {len(found.validity)} comparisons within their joint interval"
        + "".join(f"\n  {entry.what}: {entry.log_ratio:+.3f} ± {entry.half_width:.3f}" for entry in off)
    )
    if found.regret:
        worst = max(found.regret, key=lambda size: found.regret[size])
        verdict = "reached" if found.regret[worst] <= MOST_REGRET else "missed"
        lines.append(
            f"regret: at most {show.percent(found.regret[worst])} (batch size {worst}); "
            f"goal {MOST_REGRET:.0%} at every batch size: {verdict}"
        )
    return "\n".join(lines)


def _rows(entry: Comparison) -> list[list[str]]:
    rows = []
    for name, how, other in (("one boot", entry.ours, entry.ours_need), ("boot per K", entry.usual, entry.usual_need)):
        drift = show.percent(1.96 * how.between**0.5)
        seconds = [f"{how.boot_seconds:.0f}", f"{how.measuring_seconds:.0f}"]
        rows.append([entry.ratios, name, *seconds, show.percent(how.half_width), drift, f"{other.seconds:.0f}"])
    return rows


def run(setting: Setting, rounds: int, generations: int, exhaustive: Sequence[Profile], output: Path) -> None:
    """Measures, writes the JSON, prints the report."""
    write(measure(setting, rounds, generations), exhaustive, output)


def write(raw: Raw, exhaustive: Sequence[Profile], output: Path) -> None:
    """Writes the JSON and prints the report."""
    found = report(raw, exhaustive)
    times = {
        entry.ratios: {"times": entry.times, "timesAtTheirs": entry.times_at_theirs} for entry in found.comparisons
    }
    show.write_json(output, {"report": found, "times": times, "raw": raw})
    print(text(found))
