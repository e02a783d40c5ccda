"""Settings of the operator's process, as the chart hands them over in the environment."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass

LONGEST_SECONDS = 10 * 365 * 86400
"""More is a mistake, and no time could be computed with it."""


@dataclass(frozen=True)
class Settings:
    """What an administrator may tune. Times in seconds."""

    variant_grace_seconds: float = 600
    """How long a variant stays after the last node with its accelerator is gone: autoscaled pools flap."""
    retry_seconds: float = 600
    """Wait after the first failed profiling Job; doubles with every further one."""
    retry_limit_seconds: float = 86400
    resync_seconds: float = 300
    """A key is looked at this often even when nothing happens."""
    priority_class: str = ""
    """PriorityClass of profiling Jobs; the chart makes one that never preempts."""
    workers: int = 4
    namespace: str = "default"
    """Where the operator runs and keeps its Lease."""
    identity: str = "local"
    """Name of this process in the Lease."""
    lease_seconds: int = 15
    """How long a Lease counts that is not renewed."""
    watch_seconds: float = 30
    """A watch lasts this long and is then taken up where it ended; a dead one is known 5 s later."""
    wedged_seconds: float = 300
    """A round, or a look at the API server, that has not ended after this will not: the liveness probe says so."""

    @classmethod
    def from_environment(cls, env: Mapping[str, str] = os.environ) -> Settings:
        """Read ``SPECSERVE_*`` variables.

        Raises:
            ValueError: a variable is no number that makes sense; the message names it.
        """

        def number(name: str, default: float) -> float:
            text = env.get(name, "")
            try:
                value = float(text) if text else default
            except ValueError:
                value = math.nan
            if not 0 < value <= LONGEST_SECONDS:
                most = f", at most {LONGEST_SECONDS}" if value > LONGEST_SECONDS else ""
                raise ValueError(f"{name}={text!r}: give a positive number{most}")
            return value

        def count(name: str, default: int, least: int) -> int:
            value = number(name, default)
            if value < least or value != int(value):
                raise ValueError(f"{name}={env[name]!r}: give a whole number, at least {least}")
            return int(value)

        return cls(
            variant_grace_seconds=number("SPECSERVE_VARIANT_GRACE_SECONDS", cls.variant_grace_seconds),
            retry_seconds=number("SPECSERVE_RETRY_SECONDS", cls.retry_seconds),
            retry_limit_seconds=number("SPECSERVE_RETRY_LIMIT_SECONDS", cls.retry_limit_seconds),
            resync_seconds=number("SPECSERVE_RESYNC_SECONDS", cls.resync_seconds),
            priority_class=env.get("SPECSERVE_PRIORITY_CLASS", cls.priority_class),
            workers=count("SPECSERVE_WORKERS", cls.workers, 1),
            namespace=env.get("POD_NAMESPACE") or cls.namespace,
            identity=env.get("POD_NAME") or f"local-{os.getpid()}",
            lease_seconds=count("SPECSERVE_LEASE_SECONDS", cls.lease_seconds, 6),
            watch_seconds=number("SPECSERVE_WATCH_SECONDS", cls.watch_seconds),
            wedged_seconds=number("SPECSERVE_WEDGED_SECONDS", cls.wedged_seconds),
        )
