"""Why a profile is measured: a chain of small pure functions, each with a reason of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from specserve_profiler.contract.key import KeyInputs


class Reason(NamedTuple):
    """For a status and an Event."""

    reason: str
    message: str


Policy = Callable[["KeyInputs | None", KeyInputs], "Reason | None"]
"""(inputs of the profile in use, inputs wanted) -> why it does not fit, or None."""


def profile_missing(used: KeyInputs | None, wanted: KeyInputs) -> Reason | None:
    """Nothing was measured for this serving yet."""
    return Reason("ProfileMissing", "no profile yet") if used is None else None


def schema_changed(used: KeyInputs | None, wanted: KeyInputs) -> Reason | None:
    """This version of specserve stores profiles in another form."""
    if used is None or used.schema_version == wanted.schema_version:
        return None
    return Reason("SchemaChanged", f"profile schema {used.schema_version} -> {wanted.schema_version}")


def accelerator_changed(used: KeyInputs | None, wanted: KeyInputs) -> Reason | None:
    """A table is only right for the accelerator that it was measured on."""
    if used is None or used.accelerator == wanted.accelerator:
        return None
    before, after = (inputs.accelerator.get("product", "?") for inputs in (used, wanted))
    return Reason("AcceleratorChanged", f"accelerator {before} -> {after}")


def model_changed(used: KeyInputs | None, wanted: KeyInputs) -> Reason | None:
    """Target, drafter, method or Kmax."""
    if used is None:
        return None
    for name in ("model", "revision", "speculation"):
        if getattr(used, name) != getattr(wanted, name):
            return Reason("ModelChanged", f"{name} changed")
    return None


def engine_changed(used: KeyInputs | None, wanted: KeyInputs) -> Reason | None:
    """Image, command, arguments, environment or resources of the engine."""
    if used is None:
        return None
    for name in ("image", "engine", "env", "resources"):
        if getattr(used, name) != getattr(wanted, name):
            return Reason("EngineChanged", f"{name} changed")
    return None


def workload_changed(used: KeyInputs | None, wanted: KeyInputs) -> Reason | None:
    """Prompts, their lengths, the measured batch sizes, their weights, or how a table is verified."""
    if used is None:
        return None
    for name in ("workload", "workload_source", "batch_sizes", "weights", "verify"):
        if getattr(used, name) != getattr(wanted, name):
            return Reason("WorkloadChanged", f"{name} changed")
    return None


def driver_changed(used: KeyInputs | None, wanted: KeyInputs) -> Reason | None:
    """The driver, as far as driverPolicy says."""
    if used is None or used.driver == wanted.driver:
        return None
    return Reason("DriverChanged", f"driver {used.driver or '?'} -> {wanted.driver or '?'}")


POLICIES: tuple[Policy, ...] = (
    profile_missing,
    schema_changed,
    accelerator_changed,
    model_changed,
    engine_changed,
    workload_changed,
    driver_changed,
)


def why_measure(used: KeyInputs | None, wanted: KeyInputs, requested: str = "") -> Reason:
    """The first reason that applies; ``requested`` is the value of the reprofile annotation, where one asks."""
    if requested:
        return Reason("Requested", f"annotation reprofile={requested}")
    reasons = (reason for policy in POLICIES if (reason := policy(used, wanted)))
    return next(reasons, Reason("ProfileMissing", "the stored profile is gone"))
