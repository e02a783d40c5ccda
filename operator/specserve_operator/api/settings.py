"""Settings of the operator's process, as the chart hands them over in the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass


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

    @classmethod
    def from_environment(cls, env: Mapping[str, str] = os.environ) -> Settings:
        """Read ``SPECSERVE_*`` variables.

        Raises:
            ValueError: a variable is not a positive number; the message names it.
        """

        def number(name: str, default: float) -> float:
            text = env.get(name, "")
            try:
                value = float(text) if text else default
            except ValueError:
                value = -1.0
            if value <= 0:
                raise ValueError(f"{name}={text!r}: give a positive number")
            return value

        return cls(
            variant_grace_seconds=number("SPECSERVE_VARIANT_GRACE_SECONDS", cls.variant_grace_seconds),
            retry_seconds=number("SPECSERVE_RETRY_SECONDS", cls.retry_seconds),
            resync_seconds=number("SPECSERVE_RESYNC_SECONDS", cls.resync_seconds),
            priority_class=env.get("SPECSERVE_PRIORITY_CLASS", cls.priority_class),
            workers=int(number("SPECSERVE_WORKERS", cls.workers)),
            namespace=env.get("POD_NAMESPACE", cls.namespace),
            identity=env.get("POD_NAME", f"local-{os.getpid()}"),
        )
