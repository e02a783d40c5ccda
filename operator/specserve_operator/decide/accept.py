"""What the CRD's schema and CEL cannot refuse: a chain of small checks, each with a way out."""

from __future__ import annotations

from collections.abc import Callable

from specserve_operator.api.serving import ServingSpec
from specserve_operator.manifests.pod import engine_container
from specserve_profiler import render

Check = Callable[[ServingSpec], "str | None"]


def owned_arguments(spec: ServingSpec) -> str | None:
    """Flags that specserve sets must not come back through engine.args, in whatever spelling."""
    refused = render.refused_arguments(spec.engine.args)
    return "; ".join(f"engine.args: {argument}: {why}" for argument, why in refused) or None


def method_takes_tables(spec: ServingSpec) -> str | None:
    """Some methods ignore the table, or crash on it."""
    why = render.refused_speculation(spec.speculation.method)
    return f"speculation.method: {why}" if why else None


def python_path_is_literal(spec: ServingSpec) -> str | None:
    """The profiler is put on PYTHONPATH before what is there, so that must be known."""
    env = engine_container(spec.pod_template).get("env") or ()
    if any(e.get("name") == "PYTHONPATH" and "valueFrom" in e for e in env):
        return (
            "podTemplate: env PYTHONPATH of container engine: give a literal value; specserve adds the profiler to it"
        )
    return None


def engine_is_ours(spec: ServingSpec) -> str | None:
    """Image, command and args of the engine's container have one place."""
    container = engine_container(spec.pod_template)
    taken = [field for field in ("image", "command", "args") if field in container]
    return f"podTemplate: container engine: move {', '.join(taken)} to spec.engine" if taken else None


CHECKS: tuple[Check, ...] = (owned_arguments, method_takes_tables, python_path_is_literal, engine_is_ours)


def refusal(spec: ServingSpec) -> str | None:
    """Why this spec cannot be served, all reasons at once; None where it can."""
    return "; ".join(problem for check in CHECKS if (problem := check(spec))) or None
