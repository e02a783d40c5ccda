"""Profiles as one self-contained HTML page: no network, no script, readable on paper, on a phone, in light and dark."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from specserve_profiler import __version__
from specserve_profiler.contract.plain import plain
from specserve_profiler.contract.profile import Cell, PartialProfile, Profile
from specserve_profiler.contract.request import ProfileRequest
from specserve_profiler.reports.figures import pictures
from specserve_profiler.reports.flags import command_of, extra_words
from specserve_profiler.reports.reading import Reading, minute, number, percent
from specserve_profiler.reports.serving import served_arguments

_HOT = 0.10
"""Relative half-width that is drawn as the hottest."""
_STOPPED = {"Known": "the best K is known", "Budget": "the time was over"}


def page(profiles: Sequence[Profile | PartialProfile]) -> str:
    """The page. All text of a profile is escaped: names of models are somebody else's, and turn no line around."""
    articles = [_view(profile, f"p{index}") for index, profile in enumerate(profiles)]
    title = articles[0]["title"] if len(articles) == 1 else f"{len(articles)} profiles"
    made = _environment().get_template("page.html").render(articles=articles, title=title, version=__version__)
    return plain(made, "\n\t")


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("specserve_profiler.reports"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters.update(number=number, percent=percent, heat=_heat)
    return environment


def _view(profile: Profile | PartialProfile, name: str) -> dict[str, Any]:
    """What the template shows of one profile."""
    request = profile.request
    decision = profile.decision if isinstance(profile, Profile) else None
    reading = Reading(profile.measurements, decision)
    served = served_arguments(profile, request) if isinstance(profile, Profile) and request is not None else None
    return {
        "name": name,
        "title": _title(profile),
        "measured_at": minute(profile.measured_at),
        "partial": profile.partial if isinstance(profile, PartialProfile) else None,
        "decision": decision,
        "served": None if served is None else shlex.join(served),
        "pictures": pictures(profile),
        "reading": reading,
        "sizes": sorted({size for size, _ in reading.cells}),
        "skipped": _skipped(reading),
        "stopped": _STOPPED,
        "facts": list(_facts(profile)),
        "command": None if request is None else command_of(request),
    }


def _title(profile: Profile | PartialProfile) -> str:
    request, measured = profile.request, profile.measurements
    what = f"{request.model}, {request.speculation.method}" if request is not None else ""
    if not what and isinstance(profile, Profile):
        what = f"Profile {profile.key}"
    where = f" on {measured.device}" if measured.device else ""
    return f"{what or 'Profile'}{where}" + (" (partial)" if isinstance(profile, PartialProfile) else "")


def _heat(cell: Cell) -> str:
    """How red a cell is, as CSS has it."""
    return f"{min(cell.spread / _HOT, 1) * 70:.0f}%"


def _skipped(reading: Reading) -> dict[str, list[str]]:
    """Reason -> cells (``batch size/K``) that were not measured for it."""
    found: dict[str, list[str]] = {}
    for size in sorted({size for size, _ in reading.cells}):
        for k in reading.ks:
            cell = reading.cells.get((size, k))
            why = "there is no such cell" if cell is None else cell.skipped
            if why is not None:
                found.setdefault(why, []).append(f"{size}/{k}")
    return found


def _facts(profile: Profile | PartialProfile) -> Iterator[tuple[str, str]]:
    measured, spot = profile.measurements, profile.measurements.spot_check
    if isinstance(profile, Profile):
        yield "profile key", profile.key
    if profile.request is not None:
        yield from _asked(profile.request)
    yield "engine", f"vLLM {measured.engine_version}, {measured.scheduler} scheduler"
    yield "accelerator", measured.device or "not told by the engine"
    yield "graph sizes", ", ".join(map(str, measured.graph_sizes)) or "none (eager)"
    known = "two boots of the baseline and an assumption" if measured.boot_drift_measured else "an assumption"
    yield "drift between boots", f"±{100 * measured.boot_drift:.1f} %, from {known}"
    yield "mean context", f"{measured.mean_context_tokens:.0f} tokens"
    yield "distinct prompts", str(measured.distinct_prompts)
    if spot is not None:
        ratio = f"{spot.ratio.mean:.3f} ± {spot.ratio.half_width:.3f} times the acceptance length"
        yield "spot check", f"{ratio} at batch size {spot.batch_size}, K = {spot.k}"
    yield "schema version", str(profile.schema_version)
    if measured.seconds:
        yield "seconds", ", ".join(f"{stage} {seconds:.0f}" for stage, seconds in measured.seconds.items())


def _asked(request: ProfileRequest) -> Iterator[tuple[str, str]]:
    speculation, engine, workload = request.speculation, request.engine, request.workload
    yield "model", _revised(request.model, request.revision)
    yield "method", f"{speculation.method}, Kmax {speculation.max_tokens}"
    if speculation.model:
        yield "draft model", _revised(speculation.model, speculation.revision)
    if speculation.config:
        yield "further keys", " ".join(extra_words(speculation.config))
    yield "engine command", shlex.join([*engine.command, *engine.args])
    yield "largest batch size", str(engine.max_num_seqs)
    yield "longest context", f"{engine.max_model_len} tokens"
    yield "tensor parallel size", str(engine.tensor_parallel_size)
    yield "prompts", str(request.prompts)
    yield "lengths", f"up to {workload.prompt_tokens} prompt and {workload.output_tokens} output tokens"
    yield "sampling", f"temperature {workload.temperature:g}, top-p {workload.top_p:g}, seed {workload.seed}"
    yield "batch sizes", ", ".join(map(str, request.batch_sizes))
    weights = ", ".join(f"{size}: {share:g}" for size, share in sorted(request.weights.items()))
    yield "weights", weights or "all alike"
    yield "time", f"at most {request.measure_seconds:g} s of measuring, {request.timeout_seconds:g} s in all"
    yield "verification", request.verify


def _revised(name: str | None, revision: str | None) -> str:
    return str(name) if revision is None else f"{name} at {revision}"
