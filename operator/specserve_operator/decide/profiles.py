"""The life of one profile: Missing -> Queued -> Profiling -> Ready, or Failed and again after a pause."""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic import ValidationError

from specserve_operator.api import names
from specserve_operator.api.accelerator import Accelerator
from specserve_operator.api.records import ConfigMap, Job, Json, Pod, content_of, format_time
from specserve_operator.api.serving import ProfileState, ServingSpec
from specserve_operator.api.stored import Stored, Unusable
from specserve_operator.decide import accept, faults
from specserve_operator.decide.identity import Fleet, Found
from specserve_operator.decide.model import Child, NewJob, Prompts, Snapshot
from specserve_operator.decide.policies import why_measure
from specserve_operator.manifests import profiling, request
from specserve_profiler.contract.key import KeyInputs, profile_key
from specserve_profiler.contract.message import TerminationError, decode
from specserve_profiler.contract.profile import Decision, Failure, Profile
from specserve_profiler.contract.request import ProfileRequest
from specserve_profiler.dialect import render


@dataclass(frozen=True)
class ProfileView:
    """Where the profile of one key stands, and what to do about it."""

    key: str
    state: ProfileState
    reason: str = ""
    message: str = ""
    stored: Stored | None = None
    """The newest usable one; may be there while another is being measured on request."""
    measure: tuple[NewJob, ...] = ()
    adopt: tuple[Job, ...] = ()
    delete: tuple[tuple[Child, str], ...] = ()
    again_in: float | None = None
    problems: tuple[str, ...] = field(default=())
    """Of ConfigMaps that claim to be a profile of this key and are none."""


@dataclass(frozen=True)
class Shelf:
    """Profiles by their key."""

    valid: dict[str, list[Stored]] = field(default_factory=dict)
    """Key -> profiles, newest first."""
    outdated: dict[str, Unusable] = field(default_factory=dict)
    """ConfigMap -> what is left to know of a profile in another version's form."""
    problems: dict[str, list[str]] = field(default_factory=dict)
    """Key -> why ConfigMaps that claim to be profiles of it are none."""


def stored_profiles(config_maps: Iterable[ConfigMap]) -> Shelf:
    """Every ConfigMap that is a profile, or claims to be one."""
    shelf = Shelf()
    for config_map in config_maps:
        content = None if config_map.deleting else config_map.content
        if isinstance(content, Stored):
            shelf.valid.setdefault(content.key, []).append(content)
        elif isinstance(content, Unusable):
            if content.outdated:
                shelf.outdated[config_map.name] = content
            shelf.problems.setdefault(config_map.key, []).append(
                f"ConfigMap {config_map.name} is no profile: {content.problem}"
            )
    for profiles in shelf.valid.values():
        profiles.sort(key=lambda s: (s.measured_at, s.config_map), reverse=True)
    return shelf


def wanted_keys(spec: ServingSpec, fleet: Fleet, prompts: Prompts) -> frozenset[str]:
    """Keys of the profiles that a serving would use; none for a spec that is refused."""
    if accept.refusal(spec) is not None:
        return frozenset()
    inputs = (request.key_inputs(spec, f.accelerator, f.driver, prompts.digest) for f in fleet.found)
    return frozenset(map(profile_key, inputs))


def _misfit(decision: Decision, inputs: KeyInputs) -> str:
    """Why a profile cannot be served by, whoever wrote it: its table ends too soon, or K exceeds Kmax. Else empty."""
    try:
        decision.check_for(inputs.engine.max_num_seqs, inputs.speculation.max_tokens)
    except ValueError as error:
        return str(error)
    return ""


def _unlike(stored: Stored, inputs: KeyInputs) -> str:
    """Where the config that engines would get is not what is rendered for this serving of its decision; or empty."""
    if not stored.speculates:
        return ""
    try:
        wanted = render.speculative_config(inputs.speculation, stored.decision, stored.engine_version)
    except ValueError as error:
        return str(error)
    told, right = ({name: _json(value) for name, value in (config or {}).items()} for config in (stored.config, wanted))
    for name in sorted({*told, *right}):
        if told.get(name) != right.get(name):
            said = f"says {name} {told[name][:200]}" if name in told else f"does not say {name}"
            instead = f"{right[name]} is what this serving has" if name in right else "this serving has no such key"
            return f"{names.SPECULATIVE_CONFIG} {said}, {instead}"
    return ""


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


CLOCK_SKEW = dt.timedelta(minutes=5)
"""By how much the clocks of a cluster may differ."""


def _too_late(measured_at: dt.datetime, now: dt.datetime) -> str:
    """Why the time of a profile cannot be, or empty: the newest one wins, and this one would for ever."""
    if measured_at <= now + CLOCK_SKEW:
        return ""
    return f"measuredAt {format_time(measured_at)} is later than now, {format_time(now)}: mend it"


class ProfileDesk:
    """Answers for every key of one snapshot. Reads the ConfigMaps once."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._shelf = stored_profiles(snapshot.config_maps)
        self._by_name = {s.config_map: s for group in self._shelf.valid.values() for s in group}
        self._there = {c.name for c in snapshot.config_maps}
        self._stored_jobs = {c.job for c in snapshot.config_maps}
        self._outcomes: dict[str, Json | Failure] = {}

    def named(self, config_map: str) -> Stored | None:
        """The profile in that ConfigMap."""
        return self._by_name.get(config_map)

    def outdated(self, config_map: str) -> Unusable | None:
        """The profile in that ConfigMap, where it is one of another schema."""
        return self._shelf.outdated.get(config_map)

    def view(self, found: Found, inputs: KeyInputs, used: KeyInputs | None) -> ProfileView:
        """Where the profile for ``inputs`` stands.

        Args:
            used: inputs of the profile that this serving has used so far, for the reason.
        """
        key = profile_key(inputs)
        wanted = self._snapshot.serving.annotations.get(names.REPROFILE, "")
        kept = self._shelf.valid.get(key, ())
        misfits = {s.config_map: why for s in kept if (why := self._why_not(s, inputs))}
        fitting = [s for s in kept if s.config_map not in misfits]
        stored = next(iter(fitting), None)
        problems = tuple(f"ConfigMap {name} is no profile of this serving: {why}" for name, why in misfits.items())
        # Without the label nobody knows whose they were to be.
        problems += tuple(self._shelf.problems.get(key, ())) + tuple(self._shelf.problems.get("", ()))
        if stored and (not wanted or any(s.reprofile == wanted for s in fitting)):
            return ProfileView(key, "Ready", stored=stored, problems=problems)
        jobs = sorted((j for j in self._snapshot.jobs if j.key == key and not j.deleting), key=lambda j: j.attempt)
        case = _Case(self._snapshot, found, inputs, used, key, wanted if stored else "", stored, problems)
        view = self._judge(case, jobs[-1] if jobs else None)
        # Earlier attempts go when the next is there. In every round, not only in the one that starts it: it may fail.
        return replace(view, delete=(*view.delete, *_deletions(jobs[:-1])))

    def _why_not(self, stored: Stored, inputs: KeyInputs) -> str:
        too_late = _too_late(stored.measured_at, self._snapshot.now)
        return _misfit(stored.decision, inputs) or _unlike(stored, inputs) or too_late

    def _judge(self, case: _Case, last: Job | None) -> ProfileView:
        if last is None or last.state == "Active":
            return case.before_result(last)
        outcome = self._outcome(last, case.inputs)
        if isinstance(outcome, Failure):
            return case.after_result(last, outcome)
        if self._is_new(outcome):
            return case.storing(last)
        name = outcome["metadata"]["name"]
        return case.after_result(last, _failure("ResultUnusable", f"its profile is stored as {name}, but not used."))

    def results(self) -> tuple[Json, ...]:
        """Profiles of finished Jobs that are not stored yet, whether or not anybody asks for their key just now."""
        ended = [j for j in self._snapshot.jobs if j.state != "Active" and not j.deleting]
        outcomes = (self._outcome(j, inputs_of(j)) for j in ended if j.uid not in self._stored_jobs)
        return tuple(o for o in outcomes if not isinstance(o, Failure) and self._is_new(o))

    def _is_new(self, profile: Json) -> bool:
        return profile["metadata"]["name"] not in self._there

    def _outcome(self, job: Job, inputs: KeyInputs | None) -> Json | Failure:
        """The profile of a finished Job as it is stored, or why it has none."""
        if job.uid not in self._outcomes:
            self._outcomes[job.uid] = _outcome_of(self._snapshot, job, inputs)
        return self._outcomes[job.uid]


@dataclass(frozen=True)
class _Case:
    snapshot: Snapshot
    found: Found
    inputs: KeyInputs
    used: KeyInputs | None
    key: str
    requested: str
    stored: Stored | None
    problems: tuple[str, ...]

    def before_result(self, last: Job | None) -> ProfileView:
        """Without a Job, or with one that runs."""
        return self._start(1) if last is None else self._running(last)

    def storing(self, last: Job) -> ProfileView:
        """With a Job whose profile is new."""
        return self._view("Profiling", "Measured", f"Job {last.name}: storing its profile")

    def after_result(self, last: Job, failure: Failure) -> ProfileView:
        """With a Job that has ended, and led to no profile that is used."""
        asked = self.snapshot.serving.annotations.get(names.REPROFILE, "")
        if asked and asked != last.reprofile:
            return self._start(last.attempt + 1, after=last)
        return self._failed(last, failure)

    def _start(self, attempt: int, after: Job | None = None, note: str = "", failures: int = 0) -> ProfileView:
        snapshot, serving = self.snapshot, self.snapshot.serving
        why = why_measure(self.used, self.inputs, self.requested)
        if snapshot.prompts.problem:
            return self._view("Missing", "PromptsMissing", snapshot.prompts.problem)
        if not self.found.profilable:
            message = f"{why.message}; waiting for a node that is Ready, schedulable and changes neither driver nor MIG"
            return self._view("Missing", "NoUsableNode", message)
        package, copy = profiling.package_name(snapshot.package), self._prompts_copy()
        manifest = profiling.job(
            serving,
            self.found.accelerator,
            self.key,
            attempt,
            package,
            snapshot.settings.priority_class,
            why=f"{why.reason}: {why.message}",
            inputs=self.inputs,
            prompts_copy=copy["metadata"]["name"] if copy else "",
            failures=failures,
        )
        known = frozenset(c.name for c in snapshot.config_maps)
        return self._view(
            "Queued",
            why.reason,
            f"{note}{why.message}; starting Job {manifest['metadata']['name']}",
            measure=(NewJob(manifest, self.key, self.requested, (*self._package(), *([copy] if copy else [])), known),),
            delete=_deletions([after] if after else []),
        )

    def _pod_is_made(self, job: Job) -> str:
        """Job controllers tell of a refusal by Events alone."""
        if job.created is None or self.snapshot.now - job.created < POD_MADE_IN:
            return "its pod is being made"
        return f"no pod of it was taken: a quota or a policy may refuse it: kubectl describe job {job.name}"

    def _package(self) -> tuple[Json, ...]:
        """The profiler's package, where it is not there as it should be: it is mounted as code."""
        wanted = profiling.package(self.snapshot.serving.namespace, self.snapshot.package)
        content = content_of(wanted)
        name = wanted["metadata"]["name"]
        there = any(c.name == name and c.package == content for c in self.snapshot.config_maps)
        return () if there else (wanted,)

    def _prompts_copy(self) -> Json | None:
        found = self.snapshot.prompts
        return profiling.prompts(self.snapshot.serving, found.uid, found.digest, found.text) if found.uid else None

    def _running(self, job: Job) -> ProfileView:
        reason, _, why = job.why.partition(": ")
        mine = self.snapshot.serving.uid in job.owners
        pods = [p for p in self.snapshot.pods if p.job == job.uid and not p.deleting]
        pod = next((p for p in pods if p.phase in ("Pending", "Running")), None)
        state: ProfileState = "Profiling"
        if pod is None and any(p.termination for p in pods):
            stage = "ending"
        elif pod is None:
            state, stage = "Queued", self._pod_is_made(job)
        elif pod.ready:
            stage = f"measuring on {pod.node}"
        elif pod.phase == "Running" and not pod.waiting:
            stage = f"loading the model on {pod.node}"
        elif pod.node:
            stage = ": ".join(filter(None, (f"starting on {pod.node}", faults.why_not_ready(pod, self.snapshot.now))))
        else:
            state, stage = "Queued", f"waiting for a device: {pod.waiting or 'not scheduled yet'}"
        return self._view(state, reason, f"{why}; Job {job.name}: {stage}", adopt=() if mine else (job,))

    def _failed(self, job: Job, failure: Failure) -> ProfileView:
        snapshot = self.snapshot
        failures = job.failures + 1
        if failure.reason == RESULT_LOST and failures == 1:  # a pod that is gone: once that is bad luck
            return self._start(job.attempt + 1, after=job, note=f"{failure.message}; ", failures=failures)
        edited = job.requested_by != profiling.requested_by(snapshot.serving)
        if edited and job.requested_by.startswith(f"{snapshot.serving.uid}/"):
            return self._start(job.attempt + 1, after=job)
        due = (job.finished_at or snapshot.now) + dt.timedelta(seconds=retry_pause(snapshot, failures))
        if job.finished_at is None or due <= snapshot.now:
            return self._start(job.attempt + 1, after=job, failures=failures)
        message = (
            f"Job {job.name} (attempt {job.attempt}): {failure.message}"
            f" Next attempt at {format_time(due)}, or at once after an edit of the spec"
            f" or a new value of the annotation {names.REPROFILE}."
        )
        return self._view("Failed", failure.reason, message, again_in=(due - snapshot.now).total_seconds() + 1)

    def _view(
        self,
        state: ProfileState,
        reason: str,
        message: str,
        *,
        measure: tuple[NewJob, ...] = (),
        adopt: tuple[Job, ...] = (),
        delete: tuple[tuple[Child, str], ...] = (),
        again_in: float | None = None,
    ) -> ProfileView:
        return ProfileView(
            self.key, state, reason, message, self.stored, measure, adopt, delete, again_in, self.problems
        )


def _request_of(job: Job) -> ProfileRequest | None:
    """What a Job was asked for; None where an operator of another release started it."""
    try:
        return ProfileRequest.model_validate_json(job.request)
    except ValidationError:
        return None


def inputs_of(job: Job) -> KeyInputs | None:
    """What the key of a Job is the hash of, as it says itself; None where it does not, or says anything else."""
    try:
        inputs = KeyInputs.model_validate_json(job.inputs)
    except ValidationError:
        return None
    return inputs if profile_key(inputs) == job.key else None


def _deletions(jobs: Iterable[Job]) -> tuple[tuple[Child, str], ...]:
    return tuple((Child("Job", job.name), job.uid) for job in jobs)


POD_MADE_IN = dt.timedelta(seconds=30)
"""So long a Job controller may take to make a pod."""

RESULT_LOST = "ResultLost"

_ENDS = {
    "DeadlineExceeded": ("TimedOut", "it did not end in time: raise profile.timeoutSeconds, or ask for less."),
    "OOMKilled": ("OutOfMemory", "the engine ran out of memory (OOMKilled): raise its memory limit in podTemplate."),
}
"""Why a pod ended that left no message -> reason and message."""


def _outcome_of(snapshot: Snapshot, job: Job, inputs: KeyInputs | None) -> Json | Failure:
    """The profile of a finished Job as it is stored, or why it has none."""
    result = _result_of(job, snapshot.pods)
    if isinstance(result, Failure):
        return result
    if inputs is None:
        return _failure("ResultInvalid", "nobody knows what it measured.")
    # The clock of a node may be wrong.
    late = job.finished_at is not None and bool(_too_late(result.measured_at, job.finished_at))
    at = job.finished_at if late else result.measured_at
    result = result.model_copy(update={"request": _request_of(job), "measured_at": at})
    misfit = _misfit(result.decision, inputs)
    try:
        manifest = profiling.profile(snapshot.serving.namespace, result, inputs, job.reprofile, job.uid)
    except ValueError as error:  # a table for an engine that knows none
        misfit = misfit or str(error)
    return _failure("ResultInvalid", f"{misfit}.") if misfit else manifest


def has_profile(pod: Pod) -> bool:
    """Whether a pod has ended with what claims to be a profile."""
    return re.match(r"specserve:\d+:profile:", pod.termination) is not None


def _result_of(job: Job, pods: Iterable[Pod]) -> Profile | Failure:
    """What a finished Job left, read from the termination message of its pod."""
    # A disrupted pod was replaced: what it left counts least.
    own = sorted((p for p in pods if p.job == job.uid), key=lambda p: p.disrupted)
    pod = next((p for p in own if p.termination), None)
    if pod is None:
        return _no_result(job, own)
    try:
        result = decode(pod.termination)
    except TerminationError as error:
        return _failure("ResultInvalid", f"{error}; see the log of pod {pod.name}.")
    if isinstance(result, Profile) and result.key != job.key:
        return _failure("ResultInvalid", f"the result is of another key, {result.key}.")
    return result


def _no_result(job: Job, pods: list[Pod]) -> Failure:
    if job.state == "Succeeded":
        return _failure(RESULT_LOST, f"the pod of Job {job.name} was gone before its result was read")
    end = next((_ENDS[p.reason] for p in pods if p.reason in _ENDS), None)
    return _failure(*(end or (job.reason, f"{job.message or 'its pod left no message'}.")))


def _failure(reason: str, message: str) -> Failure:
    """Whatever others wrote, in the bounds of the contract."""
    return Failure(
        reason=reason if re.fullmatch("[A-Z][A-Za-z]{1,63}", reason) else "JobFailed", message=message[:1500]
    )


def retry_pause(snapshot: Snapshot, failures: int) -> float:
    """Seconds between the end of an attempt that failed as the first, second ... in a row and the next: doubling."""
    settings = snapshot.settings
    return min(settings.retry_seconds * 2.0 ** min(failures - 1, 30), settings.retry_limit_seconds)


def variant_inputs(desk: ProfileDesk, snapshot: Snapshot, accelerator: Accelerator) -> KeyInputs | None:
    """Inputs of the profile in use: this variant's own, else that of any variant of the serving."""
    by_slug = {d.variant: d for d in snapshot.deployments}
    mine = by_slug.get(accelerator.slug)
    for deployment in ([mine] if mine else []) + list(by_slug.values()):
        stored = desk.named(deployment.profile) or desk.outdated(deployment.profile)
        if stored and stored.inputs:
            return stored.inputs
    return None
