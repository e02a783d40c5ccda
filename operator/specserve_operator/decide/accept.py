"""What the CRD's schema and CEL cannot refuse: a chain of small checks, each with a way out."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from specserve_operator.api.serving import ServingSpec
from specserve_operator.manifests.merge import MERGE_KEYS
from specserve_operator.manifests.pod import engine_container, engine_env
from specserve_operator.manifests.request import speculation
from specserve_profiler.contract import variables
from specserve_profiler.contract.request import config_fault
from specserve_profiler.dialect import arguments, config_keys, support

Check = Callable[[ServingSpec], "str | None"]


_LISTS = {**MERGE_KEYS, "envFrom": "", "nodeSelectorTerms": "", "matchExpressions": ""}
_STRING_MAPS = frozenset({"nodeSelector", "limits", "requests", "matchLabels"})
_OBJECTS = _STRING_MAPS | {"affinity", "nodeAffinity", "resources", "securityContext"}
_NUMBERS = frozenset({"containerPort"})
_FURTHER_KEYS = {"ports": ("protocol", "TCP"), "topologySpreadConstraints": ("whenUnsatisfiable", "")}
"""Lists whose items the API server tells apart by one more field, with its default, than it merges them by."""
_FREE_MAPS = frozenset({"annotations", "labels", "options", "volumeAttributes"})
"""Where they are objects, their fields have any names."""
DEEPEST = 32
"""Levels below podTemplate.spec; a pod has no more than half of them."""


def template_has_shape(spec: ServingSpec) -> str | None:
    """The CRD takes anything below podTemplate.spec, and the API server is asked only about what is made of it."""
    template = spec.pod_template
    for part in ("spec", "metadata"):
        if not isinstance(template.get(part), dict | None):
            return f"podTemplate.{part}: must be an object"
    pod = template.get("spec") or {}
    if _deeper_than(template, DEEPEST):
        return f"podTemplate.spec: nested more than {DEEPEST} deep"
    return next(_faults("podTemplate.spec", pod), None) or _twice_among_containers(pod)


def _deeper_than(value: Any, levels: int) -> bool:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return levels < 0 or any(_deeper_than(part, levels - 1) for part in inner)


def _faults(path: str, part: dict[str, Any]) -> Iterator[str]:
    for field, value in part.items():
        where = f"{path}.{field}"
        if value is None or path.rpartition(".")[2] in _STRING_MAPS | _FREE_MAPS:
            continue
        term = field.startswith("required") and path.endswith(".nodeAffinity")
        if field in _LISTS:
            yield from _faults_of_list(where, value, field)
        elif isinstance(value, dict):
            yield from _faults(where, value)
        elif field in _OBJECTS or term:
            yield f"{where}: must be an object"


def _faults_of_list(path: str, items: Any, field: str) -> Iterator[str]:
    key = _LISTS[field]
    kind = int if key in _NUMBERS else str
    shaped = isinstance(items, list) and all(
        isinstance(item, dict) and (not key or type(item.get(key)) is kind) for item in items
    )
    if not shaped:
        yield f"{path}: must be a list of objects" + (f", each with its {key}" if key else "")
        return
    further, usual = _FURTHER_KEYS.get(field, ("", ""))
    if key and (name := _twice((item[key], str(item.get(further) or usual)) for item in items)):
        yield f"{path}: {key} {name} is there twice"
    for index, item in enumerate(items):
        if field == "env" and not isinstance(item.get("value"), str | None):
            yield f"{path}[{index}].value: must be a text: quote it"
        yield from _faults(f"{path}[{index}]", item)


def _twice(keys: Iterable[tuple[Any, str]]) -> str:
    """The first that comes again, or nothing."""
    seen = set()
    for key in keys:
        if key in seen:
            return str(key[0])
        seen.add(key)
    return ""


def _twice_among_containers(pod: dict[str, Any]) -> str | None:
    """A pod's containers of all kinds share their names."""
    kinds = ("initContainers", "containers", "ephemeralContainers")
    name = _twice((container["name"], "") for kind in kinds for container in pod.get(kind) or ())
    return f"podTemplate.spec: two containers are called {name}" if name else None


def config_has_shape(spec: ServingSpec) -> str | None:
    """The CRD takes any values below speculation.config, and the API server bounds only how many."""
    fault = config_fault(spec.speculation.config)
    return None if fault is None else f"speculation.config: {fault}"


def owned_arguments(spec: ServingSpec) -> str | None:
    """Flags that specserve sets must not come back through engine.args, in whatever spelling, nor through a variable.

    What comes from a Secret is not known here; the profiler judges once more.
    """
    known = _known(spec)
    args = [variables.expand(argument, known) for argument in spec.engine.args]
    refused = arguments.refused_arguments(args) + [
        (flag.text, "a variable may be a value, not the name of a flag")
        for flag in arguments.flags(args)
        if variables.references(flag.text.partition("=")[0])
    ]
    return "; ".join(f"engine.args: {argument}: {why}" for argument, why in refused) or None


def model_is_no_flag(spec: ServingSpec) -> str | None:
    """vLLM takes the model by its position."""
    name = variables.expand(spec.model.name, _known(spec))
    return f"model.name: {name}: the engine would take it for a flag" if name.startswith("-") else None


def references_lead_somewhere(spec: ServingSpec) -> str | None:
    """``$(NAME)`` is expanded by the kubelet in arguments; not in a speculative config, nor to what is ours."""
    line = (*spec.engine.command, spec.model.name, spec.model.revision or "", *spec.engine.args)
    ours = [name for name in variables.references(*line) if name.startswith("SPECSERVE_")]
    if ours:
        return f"engine.args: $({ours[0]}): specserve sets this variable, and not the same in Job and Deployment"
    drafts = spec.speculation
    data = {"model": drafts.model or "", "revision": drafts.revision or "", "config": json.dumps(drafts.config)}
    for field, text in data.items():
        if named := variables.references(text):
            return f"speculation.{field}: $({named[0]}): variables are not expanded here; write the value itself"
    return None


def _known(spec: ServingSpec) -> dict[str, str]:
    """The engine's variables as far as the spec says their values; each may refer to those before it."""
    known: dict[str, str] = {}
    for entry in engine_env(spec):
        name = str(entry["name"])
        if "valueFrom" in entry:
            known.pop(name, None)
        else:
            known[name] = variables.expand(str(entry.get("value", "")), known)
    return known


def owned_config(spec: ServingSpec) -> str | None:
    """Keys that specserve sets, or that vLLM does not know or not so, must not come through speculation.config."""
    version = support.version_of_image(spec.engine.image)
    refused = config_keys.refused_config(speculation(spec), spec.engine.tensor_parallel_size, version)
    return "; ".join(f"speculation.config.{key}: {why}" for key, why in refused) or None


def engine_honours_tables(spec: ServingSpec) -> str | None:
    """Some engines ignore a table, or crash on it: told before a Job takes a device."""
    answer = _foreseen(spec)
    return f"speculation.method: {answer}" if isinstance(answer, support.Refused) else None


def note(spec: ServingSpec) -> str:
    """What to know of an accepted spec: that its engine makes less of a table than it could."""
    answer = _foreseen(spec)
    if not isinstance(answer, support.Warned):
        return ""
    if support.RUNNER_VARIABLE in _literals(spec):
        return str(answer)
    return f"{answer} (where the engine uses Model Runner V2; {support.RUNNER_VARIABLE}=0 in its env chooses V1)"


def _foreseen(spec: ServingSpec) -> support.Honour:
    version = support.version_of_image(spec.engine.image)
    return support.foresee(speculation(spec), version, _literals(spec))


def _literals(spec: ServingSpec) -> dict[str, str]:
    """The engine's environment, as far as it does not come from elsewhere."""
    env = engine_container(spec.pod_template).get("env") or ()
    return {e["name"]: str(e.get("value", "")) for e in env if "valueFrom" not in e}


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


CHECKS: tuple[Check, ...] = (
    owned_arguments,
    model_is_no_flag,
    references_lead_somewhere,
    owned_config,
    engine_honours_tables,
    python_path_is_literal,
    engine_is_ours,
)


def refusal(spec: ServingSpec) -> str | None:
    """Why this spec cannot be served, all reasons at once; None where it can."""
    if problem := template_has_shape(spec) or config_has_shape(spec):  # the others could not look at it
        return problem
    return "; ".join(problem for check in CHECKS if (problem := check(spec))) or None
