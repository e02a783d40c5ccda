"""What a decision sees and what it answers: a frozen Snapshot in, a frozen Plan out."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from specserve_operator.api.records import ConfigMap, Deployment, Job, Json, Pod, Service
from specserve_operator.api.serving import ServingStatus, SpeculativeServing
from specserve_operator.api.settings import Settings
from specserve_operator.decide.identity import Fleet


class Child(NamedTuple):
    """A child in the namespace of its serving."""

    kind: Literal["Deployment", "Service", "Job", "ConfigMap"]
    name: str


@dataclass(frozen=True)
class Prompts:
    """Prompts of a ConfigMap, as far as a decision needs them."""

    digest: str = ""
    """Of the content; empty where they are a path, or cannot be read."""
    text: str = field(default="", repr=False)
    uid: str = ""
    """Of the ConfigMap."""
    problem: str = ""
    """Why they cannot be read, and the way out."""


@dataclass(frozen=True)
class Snapshot:
    """One serving and all that touches it, at one moment."""

    now: dt.datetime
    settings: Settings
    serving: SpeculativeServing
    package: bytes
    """The profiler's zip."""
    fleet: Fleet = field(default_factory=Fleet)
    """The nodes, as ``identity.survey`` groups them for this serving."""
    jobs: tuple[Job, ...] = ()
    """Profiling Jobs of its keys, which other servings may have asked for, and those that it owns."""
    pods: tuple[Pod, ...] = ()
    """Of this serving and of ``jobs``."""
    config_maps: tuple[ConfigMap, ...] = ()
    """Profiles of its keys and of its Jobs', of none, and those that its Deployments name; the profiler's package."""
    deployments: tuple[Deployment, ...] = ()
    """Of this serving."""
    services: tuple[Service, ...] = ()
    """Of this serving."""
    prompts: Prompts = Prompts()
    applied: Mapping[Child, int] = field(default_factory=dict)
    """Child -> its generation after our own last apply. Another one means that somebody else edited it."""


@dataclass(frozen=True)
class Event:
    """An Event for people, told once per transition."""

    type: Literal["Normal", "Warning"]
    reason: str
    message: str


@dataclass(frozen=True)
class NewJob:
    """A Job to POST, unless a live look finds one of that name or a usable profile of its key."""

    manifest: Json
    key: str
    reprofile: str = ""
    """Where set, profiles without it do not count."""
    needs: tuple[Json, ...] = ()
    """Immutable objects that it mounts, to be made before it."""
    known: frozenset[str] = frozenset()
    """ConfigMaps that do not make it needless: they were looked at."""


@dataclass(frozen=True)
class Plan:
    """What to do, in this order; then when to look again. An empty plan writes nothing."""

    create: tuple[Json, ...] = ()
    """Profiles, immutable and named by their content; one that exists is as good."""
    apply: tuple[Json, ...] = ()
    scale: tuple[tuple[str, int], ...] = ()
    """(Deployment, replicas)."""
    measure: tuple[NewJob, ...] = ()
    adopt: tuple[Job, ...] = ()
    """Running Jobs of somebody else that this serving waits for too: an owner reference keeps them alive."""
    release: tuple[Job, ...] = ()
    """Unfinished Jobs that this serving waits for no more: its owner reference goes, and the last one takes the Job."""
    delete: tuple[tuple[Child, str], ...] = ()
    """(child, uid): a successor of that name stays."""
    status: ServingStatus = field(default_factory=ServingStatus)
    events: tuple[Event, ...] = ()
    again_in: float = 0.0
    """Seconds."""
