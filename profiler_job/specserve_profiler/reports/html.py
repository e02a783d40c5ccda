"""Profiles as one self-contained HTML page: no network, no script, readable on paper, on a phone, in light and dark."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from html import escape
from importlib import resources

from specserve_profiler import __version__
from specserve_profiler.contract.profile import PartialProfile, Profile
from specserve_profiler.contract.request import ProfileRequest
from specserve_profiler.reports.figures import pictures
from specserve_profiler.reports.flags import command_of
from specserve_profiler.reports.reading import Reading, number, percent
from specserve_profiler.reports.serving import served_arguments

_HOT = 0.10
"""Relative half-width that is drawn as the hottest."""


def page(profiles: Sequence[Profile | PartialProfile]) -> str:
    """The page. All text of a profile is escaped: names of models are somebody else's."""
    titles = [_title(profile) for profile in profiles]
    style = resources.files("specserve_profiler.reports").joinpath("report.css").read_text(encoding="utf-8")
    parts = [
        "<!DOCTYPE html>",
        '<html lang="en"><head><meta charset="utf-8"/>',
        '<meta name="viewport" content="width=device-width, initial-scale=1"/>',
        f"<title>{escape(titles[0] if len(titles) == 1 else f'{len(titles)} profiles')}</title>",
        f"<style>\n{style}</style></head><body>",
    ]
    if len(profiles) > 1:
        links = "".join(
            f'<li><a href="#p{i}">{escape(title)}</a>, {profile.measured_at:%Y-%m-%d %H:%M} UTC</li>'
            for i, (title, profile) in enumerate(zip(titles, profiles, strict=True))
        )
        parts.append(f'<nav aria-label="Profiles"><ul>{links}</ul></nav>')
    parts += [_article(profile, f"p{index}") for index, profile in enumerate(profiles)]
    parts.append(f'<footer class="faint"><p>Made by specserve-profile {escape(__version__)}.</p></footer>')
    parts.append("</body></html>\n")
    return "\n".join(parts)


def _title(profile: Profile | PartialProfile) -> str:
    request, measured = profile.request, profile.measurements
    what = f"{request.model}, {request.speculation.method}" if request is not None else ""
    if not what and isinstance(profile, Profile):
        what = f"Profile {profile.key}"
    where = f" on {measured.device}" if measured.device else ""
    return f"{what or 'Profile'}{where}" + (" (partial)" if isinstance(profile, PartialProfile) else "")


def _article(profile: Profile | PartialProfile, name: str) -> str:
    reading = Reading(profile.measurements, profile.decision if isinstance(profile, Profile) else None)
    parts = [
        f'<article id="{name}"><header><h1>{escape(_title(profile))}</h1>',
        f'<p class="faint">measured {profile.measured_at:%Y-%m-%d %H:%M} UTC</p></header>',
        _verdict(profile),
        _figures(profile, name),
        _table_section(reading),
        _goodput_table(reading),
        _quality(reading),
        _identity(profile),
        _command(profile.request),
        "</article>",
    ]
    return "\n".join(part for part in parts if part)


def _verdict(profile: Profile | PartialProfile) -> str:
    if isinstance(profile, PartialProfile):
        return (
            f'<section class="card partial"><p><strong>Partial profile</strong></p><p>{escape(profile.partial)}</p>'
            "<p>This is what was measured until then. There is no decision: serve nothing on its ground.</p></section>"
        )
    decision = profile.decision
    parts = [
        f'<section class="card verdict"><p><strong>Verdict: {escape(decision.verdict)}</strong></p>',
        f"<p>{escape(decision.reason)}</p>",
    ]
    if profile.request is not None:
        words = served_arguments(profile, profile.request)
        if words:
            parts.append(f"<p>Serve with</p><pre>{escape(shlex.join(words))}</pre>")
        else:
            parts.append("<p>Serve without <code>--speculative-config</code>.</p>")
    parts.append("</section>")
    if decision.warnings:
        warnings = "".join(f"<li>{escape(warning)}</li>" for warning in decision.warnings)
        parts.append(f'<section class="card warning"><h3>Warnings</h3><ul>{warnings}</ul></section>')
    return "\n".join(parts)


def _figures(profile: Profile | PartialProfile, name: str) -> str:
    figures = []
    for picture in pictures(profile):
        title, alt = escape(picture.title), escape(picture.alt, quote=True)
        wide = ' class="wide"' if picture.name == "table" else ""
        figures.append(
            f'<figure{wide}><figcaption>{title}</figcaption><div role="img" aria-label="{alt}">'
            f"{picture.svg(name)}</div></figure>"
        )
    if not figures:
        return ""
    note = "Bands and bars are 95 % intervals. The dashed line is the engine without speculation."
    return f'<h2>What was measured</h2><p class="faint">{note}</p><div class="figures">{"".join(figures)}</div>'


def _table_section(reading: Reading) -> str:
    if reading.decision is None:
        return ""
    speedups = {speedup.batch_size: speedup for speedup in reading.decision.speedups}
    rows = [
        [f'<span class="swatch" style="background:var(--k{row.k % 9})"></span>{row.first} to {row.last}', str(row.k)]
        for row in reading.rows()
    ]
    parts = ["<h2>Table and speedups</h2>", _html_table("K by batch size", ["batch size", "K"], rows)]
    if speedups:
        lines = [
            [
                str(size),
                f"{speedup.over_baseline:.2f}x <small>±{100 * speedup.half_width:.1f}%</small>",
                f"{speedup.over_static:.2f}x",
                "verified" if speedup.verified else "predicted",
            ]
            for size, speedup in sorted(speedups.items())
        ]
        heads = ["batch size", "over no speculation", f"over K = {reading.decision.static_k}", "how it is known"]
        parts.append(_html_table("Speedup", heads, lines))
    return "\n".join(parts)


def _goodput_table(reading: Reading) -> str:
    if not reading.sizes:
        return ""
    lines = []
    for size in reading.sizes:
        cells = [f'<th scope="row">{size}</th>']
        for k in (None, *reading.ks):
            goodput, itl = reading.goodput(size, k), reading.itl(size, k)
            chosen = ' class="chosen"' if k is not None and k == reading.k_at(size) else ""
            if goodput is None or itl is None:
                cells.append('<td class="skipped">-</td>')
            else:
                cells.append(
                    f"<td{chosen}>{number(goodput.mean)} <small>{percent(goodput)}</small><br/>"
                    f"<small>{number(itl.mean)} ms</small></td>"
                )
        lines.append(f"<tr>{''.join(cells)}</tr>")
    heads = "".join(f'<th scope="col">{text}</th>' for text in ("batch", "baseline", *(f"K={k}" for k in reading.ks)))
    caption = "Goodput in tokens/s with its 95 % half-width, and ITL" + (
        "; framed: the table's K" if reading.decision is not None else ""
    )
    return (
        f'<h2>Grid</h2><div class="scroll"><table><caption>{caption}</caption><thead><tr>{heads}</tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table></div>"
    )


def _quality(reading: Reading) -> str:
    if not reading.cells:
        return ""
    skipped: dict[str, list[str]] = {}
    lines = []
    for size in sorted({size for size, _ in reading.cells}):
        cells = [f'<th scope="row">{size}</th>']
        for k in reading.ks:
            cell = reading.cells.get((size, k))
            if cell is None or cell.skipped is not None:
                skipped.setdefault("there is no such cell" if cell is None else str(cell.skipped), []).append(
                    f"{size}/{k}"
                )
                cells.append('<td class="skipped">skipped</td>')
                continue
            heat = min(cell.spread / _HOT, 1) * 70
            cells.append(
                f'<td class="cell" style="--heat:{heat:.0f}%">±{100 * cell.spread:.1f}%<br/>'
                f"<small>{cell.blocks} blocks</small></td>"
            )
        cells += _level(reading, size)
        lines.append(f"<tr>{''.join(cells)}</tr>")
    names = ("batch", *(f"K={k}" for k in reading.ks), "cohorts", "common drift", "steps dropped")
    heads = "".join(f'<th scope="col">{text}</th>' for text in names) + '<th scope="col" class="words">stopped</th>'
    caption = "Spread of each cell beside the others of its batch size (95 %, redder is worse) and its blocks"
    notes = "".join(f"<li>{escape(', '.join(at))}: {escape(why)}</li>" for why, at in skipped.items())
    return (
        f'<h2>Quality</h2><div class="scroll"><table><caption>{caption}</caption><thead><tr>{heads}</tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table></div>"
        + (f"<p>Not measured (batch size/K):</p><ul>{notes}</ul>" if notes else "")
    )


def _level(reading: Reading, size: int) -> list[str]:
    level = reading.levels.get(size)
    if level is None:
        return ["<td>-</td>"] * 3 + ['<td class="words">-</td>']
    why = {"Known": "the best K is known", "Budget": "the time was over"}[level.stopped]
    return [
        f"<td>{level.cohorts}</td>",
        f"<td>±{100 * level.half_width:.1f}%</td>",
        f"<td>{level.dropped_steps}</td>",
        f'<td class="words">{why}</td>',
    ]


def _identity(profile: Profile | PartialProfile) -> str:
    measured, request = profile.measurements, profile.request
    facts: list[tuple[str, str]] = []
    if isinstance(profile, Profile):
        facts.append(("profile key", profile.key))
    if request is not None:
        facts += _asked(request)
    graphs = ", ".join(map(str, measured.graph_sizes)) or "none (eager)"
    known = "two boots of the baseline and an assumption" if measured.boot_drift_measured else "an assumption"
    facts += [
        ("engine", f"vLLM {measured.engine_version}, {measured.scheduler} scheduler"),
        ("accelerator", measured.device or "not told by the engine"),
        ("graph sizes", graphs),
        ("drift between boots", f"±{100 * measured.boot_drift:.1f} %, from {known}"),
        ("mean context", f"{measured.mean_context_tokens:.0f} tokens"),
        ("distinct prompts", str(measured.distinct_prompts)),
        *_spot(profile),
        ("schema version", str(profile.schema_version)),
    ]
    if measured.seconds:
        facts.append(("seconds", ", ".join(f"{stage} {seconds:.0f}" for stage, seconds in measured.seconds.items())))
    return f"<h2>Identity</h2>{_facts(facts)}"


def _spot(profile: Profile | PartialProfile) -> list[tuple[str, str]]:
    spot = profile.measurements.spot_check
    if spot is None:
        return []
    ratio = f"{spot.ratio.mean:.3f} ± {spot.ratio.half_width:.3f} times the acceptance length"
    return [("spot check", f"{ratio} at batch size {spot.batch_size}, K = {spot.k}")]


def _asked(request: ProfileRequest) -> list[tuple[str, str]]:
    speculation, engine, workload = request.speculation, request.engine, request.workload
    drafter = [("draft model", _revised(speculation.model, speculation.revision))] if speculation.model else []
    weights = ", ".join(f"{size}: {share:g}" for size, share in sorted(request.weights.items()))
    return [
        ("model", _revised(request.model, request.revision)),
        ("method", f"{speculation.method}, Kmax {speculation.max_tokens}"),
        *drafter,
        ("engine command", shlex.join([*engine.command, *engine.args])),
        ("largest batch size", str(engine.max_num_seqs)),
        ("longest context", f"{engine.max_model_len} tokens"),
        ("tensor parallel size", str(engine.tensor_parallel_size)),
        ("prompts", str(request.prompts)),
        ("lengths", f"up to {workload.prompt_tokens} prompt and {workload.output_tokens} output tokens"),
        ("sampling", f"temperature {workload.temperature:g}, top-p {workload.top_p:g}, seed {workload.seed}"),
        ("batch sizes", ", ".join(map(str, request.batch_sizes))),
        ("weights", weights or "all alike"),
        ("time", f"at most {request.measure_seconds:g} s of measuring, {request.timeout_seconds:g} s in all"),
        ("verification", request.verify),
    ]


def _command(request: ProfileRequest | None) -> str:
    if request is None:
        return ""
    return f"<h2>The command that measures this</h2><pre>{escape(command_of(request))}</pre>"


def _revised(name: str | None, revision: str | None) -> str:
    return str(name) if revision is None else f"{name} at {revision}"


def _facts(facts: Iterable[tuple[str, str]]) -> str:
    return f"<dl>{''.join(f'<dt>{escape(name)}</dt><dd>{escape(value)}</dd>' for name, value in facts)}</dl>"


def _html_table(caption: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f'<th scope="col">{escape(text)}</th>' for text in heads)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return (
        f'<div class="scroll"><table><caption>{escape(caption)}</caption><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )
