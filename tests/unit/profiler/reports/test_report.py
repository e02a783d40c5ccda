"""Reports: the same facts on a terminal and as a page that needs nothing from outside."""

from __future__ import annotations

import datetime as dt
import re
from xml.etree import ElementTree

import pytest
from tests.unit.profiler.profiles_sample import WHEN, decision, measurements, partial, profile, request

from specserve_profiler.contract.profile import (
    Arm,
    ArmLoop,
    BaselineCell,
    Interval,
    Measurements,
    PartialProfile,
    Profile,
    Row,
    short_table,
)
from specserve_profiler.reports.figures import pictures
from specserve_profiler.reports.html import page
from specserve_profiler.reports.reading import Reading, band, bars
from specserve_profiler.reports.text import WIDTH, report


def elements(html: str) -> ElementTree.Element:
    """The page as a tree; raises where it is not well-formed."""
    return ElementTree.fromstring(html.removeprefix("<!DOCTYPE html>"))  # noqa: S314 - our own page


# terminal


def test_terminal_report_shows_grid_choice_quality_verdict_and_speedups() -> None:
    text = report(profile())

    assert "vLLM 0.32.0 (async scheduler) on NVIDIA L4, mean context 402 tokens" in text
    assert "K = 1   1.74  ±2% over prompts like these, ±0.3% for just these 80; by position .74" in text
    assert "at batch size 32, K = 5: 1.004 times that (± 0.011)" in text
    # AL 3.10 in 15.9 ms: 195 tokens/s, the table's choice at batch size 1
    assert re.search(r"^ +1 +90.9 +87.9 +141 +172 +186 +193 +\[195\]$", text, re.MULTILINE)
    assert "- not measured at (batch/K) 256/5: a step takes 1536 tokens" in text
    assert re.search(r"^ +256 .* the time was over$", text, re.MULTILINE)
    assert "Table    1-8:5 9-40:3 41-120:2 121-256:1   (batch sizes:K)   best single K: 2" in text
    assert re.search(r"^ +1 +2\.15x  ±3% +1\.14x  verified$", text, re.MULTILINE)
    assert "Verdict Dynamic: The table has 1.62 times the goodput" in text


def test_terminal_report_fits_a_terminal_whatever_is_in_it() -> None:
    long_name = "organisation/" + 30 * "very-long-name-"
    sizes = tuple(2**power for power in range(12))
    wide = profile(measurements=measurements(sizes, 8), request=request(model=long_name))

    text = report(wide)

    assert max(map(len, text.splitlines())) <= WIDTH == 100
    assert long_name[:80] in text


def test_a_time_of_another_zone_is_told_in_utc() -> None:
    tokyo = dt.timezone(dt.timedelta(hours=9))
    early = profile(measured_at=dt.datetime(2026, 11, 4, 3, 5, tzinfo=tokyo))

    assert ", measured 2026-11-03 18:05 UTC" in report(early)
    assert "measured 2026-11-03 18:05 UTC" in page([early])


def test_a_partial_report_says_so_first_and_decides_nothing() -> None:
    text = report(partial())

    assert text.startswith("PARTIAL profile, measured 2026-11-03 14:15 UTC: TimedOut: no profile within 3580 s")
    assert "Verdict" not in text and "[" not in text.split("Goodput:")[1].split("Quality")[0]


def tried(*more: ArmLoop) -> Profile:
    """The sample with loops of arms that were only tried."""
    measured = measurements()
    return profile(measurements=measured.model_copy(update={"loops": (*measured.loops, *more)}))


def test_what_was_tried_is_told_from_what_is_served() -> None:
    alone = Arm(kind="Table", rows=(Row(first=1, last=256, k=3),))
    points = measurements().loops[2].points
    failed = ArmLoop(arm=Arm(kind="Adaptive", k=5), failed="ValueError: adaptive verification needs full graphs")
    found = tried(ArmLoop(arm=alone, points=points, live=True), ArmLoop(arm=alone, points=points), failed)

    text = report(found)
    (loops,) = (picture.alt for picture in pictures(found) if picture.name == "loops")

    assert "\n  table 1-256:3, followed in the boot of another\n        1 " in text
    assert "\n  table 1-256:3\n        1 " in text
    assert "\n  adaptive verification\n    the engine does not serve like this: ValueError: adaptive" in text
    assert loops.count("table 1-256:3: ") == 1 and "adaptive" not in loops
    html = "".join(elements(page([found])).itertext())
    assert "table that was tried" in html


def test_short_table() -> None:
    assert short_table([Row(first=1, last=16, k=4), Row(first=17, last=64, k=0)]) == "1-16:4 17-64:0"


# what both say


def test_goodput_is_al_over_itl_with_both_errors() -> None:
    reading = Reading(measurements(), decision())
    cell, level = reading.cells[8, 3], reading.levels[8]

    found = reading.goodput(8, 3)

    # AL of K = 3 is 1 + .74 + .52 + .37; its half-width for these prompts is 0.8 % of what is above 1
    assert found is not None and cell.itl_ms is not None
    assert found.mean == pytest.approx(8000 * 2.63 / cell.itl_ms)
    relative = (cell.spread**2 + level.half_width**2 + (0.008 * 1.63 / 2.63) ** 2) ** 0.5
    assert found.half_width / found.mean == pytest.approx(relative)
    assert reading.goodput(256, 5) is None


def test_speedup_over_the_baseline_has_the_drift_between_boots_and_over_a_static_k_has_not() -> None:
    still = measurements().model_copy(update={"boot_drift": 0.0})
    moving = measurements().model_copy(update={"boot_drift": 0.5})

    for of_table in ("over_baseline", "over_static"):
        less = getattr(Reading(still, decision()), of_table)(1)
        more = getattr(Reading(moving, decision()), of_table)(1)
        assert less.mean == more.mean
        assert (more.half_width > 5 * less.half_width) is (of_table == "over_baseline")
    # The table's K at 64 is the static one: nothing to be unsure of
    assert Reading(moving, decision()).over_static(64) == Interval(mean=1.0)


# the page


def test_page_holds_every_fact() -> None:
    html = page([profile()])
    text = " ".join("".join(elements(html).itertext()).split())

    assert "Verdict: Dynamic" in text
    assert "80 prompts are fewer than twice the largest batch size 256" in text
    assert "256/5: a step takes 1536 tokens, the engine schedules at most 1280" in text
    assert "org/target-8b at abc123" in text and "NVIDIA L4" in text and "vLLM 0.32.0, async scheduler" in text
    assert "±1.2 %, from two boots of the baseline" in text
    assert "specserve-profile run --model=org/target-8b --revision=abc123" in text
    assert '"num_speculative_tokens_per_batch_size":[[1,8,5],[9,40,3],[41,120,2],[121,256,1]]' in text
    assert "2.15x ±3.0%" in text


def test_page_needs_nothing_from_outside_and_runs_nothing() -> None:
    html = page([profile(), partial()])

    assert not re.search(r"https?:|//[a-z]", html.replace("http-equiv", ""))
    assert "<script" not in html and "<link" not in html and "<img" not in html and "@import" not in html
    for element in elements(html).iter():
        for name, value in element.attrib.items():
            assert not name.startswith("on"), (element.tag, name)
            if name in ("href", "src"):
                assert value.startswith("#"), value


def test_every_picture_has_words_and_no_id_comes_twice() -> None:
    tree = elements(page([profile(), partial()]))

    figures = [found for found in tree.iter("div") if found.get("role") == "img"]
    assert len(figures) == 8 + 4
    assert all(len(found.get("aria-label", "")) > 40 for found in figures)
    assert any(
        "at batch size 1 the best is K = 5 with 195 tokens/s of the whole engine" in str(f.attrib) for f in figures
    )
    ids = [element.get("id") for element in tree.iter() if element.get("id")]
    assert len(ids) == len(set(ids))
    known = set(ids)
    for element in tree.iter():
        for value in element.attrib.values():
            for target in re.findall(r"url\(#([^)]+)\)", value):
                assert target in known
        assert (element.get("href") or "#")[1:] in known | {""}


def test_page_escapes_what_others_named() -> None:
    bad = '</style><script>alert("1")</script>&<b>'
    measured = measurements().model_copy(update={"device": bad, "engine_version": bad})
    done = profile(
        measurements=measured,
        request=request(model=bad, engine={"args": (bad,), "maxNumSeqs": 256, "maxModelLen": 512}),
        decision=decision().model_copy(update={"reason": bad, "warnings": (bad,)}),
    )

    html = page([done, PartialProfile(partial=bad, measured_at=WHEN, measurements=measured)])

    assert "<script" not in html and "<b>" not in html
    text = "".join(elements(html).itertext())
    assert bad in text


def test_a_partial_page_says_so_and_serves_nothing() -> None:
    html = page([partial()])
    text = "".join(elements(html).itertext())

    assert "Partial profile" in text and "TimedOut: no profile within 3580 s" in text
    assert "--speculative-config" not in text and "Verdict" not in text
    assert "(partial)" in text


@pytest.mark.parametrize(
    ("measured", "names"),
    [
        (Measurements(engine_version="0.32.0", scheduler="sync"), []),
        (
            Measurements(
                engine_version="0.32.0",
                scheduler="sync",
                baseline=(BaselineCell(batch_size=1, itl_ms=Interval(mean=5), blocks=3),),
            ),
            ["goodput", "itl"],
        ),
    ],
)
def test_whatever_little_was_measured_is_shown(measured: Measurements, names: list[str]) -> None:
    early = PartialProfile(partial="Interrupted: early", measured_at=WHEN, measurements=measured)

    assert [picture.name for picture in pictures(early)] == names
    assert "Interrupted: early" in "".join(elements(page([early])).itertext())
    assert report(early).startswith("PARTIAL profile")


def test_pictures_are_the_same_for_the_same_profile() -> None:
    one, two = (page([profile()]) for _ in range(2))

    assert one == two


def test_an_interval_of_more_than_its_mean_stays_above_zero() -> None:
    """Half-widths are of logarithms: a band is a factor, e^1.5 = 4.48 here, up and down."""
    wide = Interval(mean=10, half_width=15)

    assert band(wide) == (pytest.approx(2.231, rel=1e-3), pytest.approx(44.817, rel=1e-3))
    assert bars([wide]) == ([pytest.approx(7.769, rel=1e-3)], [pytest.approx(34.817, rel=1e-3)])
    assert band(Interval(mean=10, half_width=0.1)) == (
        pytest.approx(9.9005, rel=1e-5),
        pytest.approx(10.1005, rel=1e-5),
    )

    measured = measurements()
    cells = tuple(
        cell if cell.skipped else cell.model_copy(update={"spread": 1.5 if cell.k == 3 else cell.spread})
        for cell in measured.grid
    )
    for picture in pictures(profile(measurements=measured.model_copy(update={"grid": cells}))):
        lows = [
            collection.get_datalim(axes.transData).y0 for axes in picture.figure.axes for collection in axes.collections
        ]
        assert all(low > 0 for low in lows), picture.name
