"""``specserve-profile job``: the Job's door, where the whole command line is installed."""

from __future__ import annotations


def job() -> int:
    """What a profiling Job runs: the request comes from SPECSERVE_REQUEST, the result leaves by the termination log.

    \b
    Example, inside the engine's image:
      python -m specserve_profiler job
    """
    from specserve_profiler.session.job import run_job

    return run_job()
