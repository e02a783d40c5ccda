"""Failures that a person can act on."""

from __future__ import annotations

from specserve_profiler.contract import Failure


class ProfilingError(Exception):
    """Ends a run. ``reason`` is CamelCase for a condition, the text says what happened and what to do next."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason

    def failure(self) -> Failure:
        """The error as it leaves the pod."""
        return Failure(reason=self.reason, message=str(self)[:1500])
