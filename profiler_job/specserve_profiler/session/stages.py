"""One profile, stage by stage: the baseline, acceptance and grid, the table in a closed loop, the baseline again.

What is known after each stage is kept, so that a run that ends early still leaves what it measured, and one that has
come to a decision ends with it.
"""

from __future__ import annotations

from collections.abc import Callable

from specserve_profiler.contract.profile import Decision, Measurements
from specserve_profiler.contract.reasons import ProfilingError
from specserve_profiler.contract.request import ProfileRequest
from specserve_profiler.decision import verdict
from specserve_profiler.session.arms import Arms
from specserve_profiler.session.baseline_boots import BaselineBoots
from specserve_profiler.session.console import say
from specserve_profiler.session.every_k import EveryK
from specserve_profiler.session.lab import Lab
from specserve_profiler.session.loops import Loops
from specserve_profiler.statistics.budget import AGAIN


class Session:
    """The state of one run."""

    def __init__(self, request: ProfileRequest, on_measuring: Callable[[], None]) -> None:
        self.request = request
        self.lab = Lab(request)
        self.boots = self.lab.boots
        self.decided = False
        """Whether there is a decision that could be served."""
        loops = Loops(self.lab)
        self._baseline = BaselineBoots(self.lab, loops)
        self._every_k = EveryK(self.lab)
        self._arms = Arms(self.lab, loops)
        self._on_measuring = on_measuring

    async def run(self) -> Decision:
        """All stages. Raises ProfilingError."""
        await self.lab.prepare()
        await self._baseline.boot(self._measuring)
        await self._every_k.boot()
        decision = self.decision()
        self.decided = True
        say(f"predicted verdict {decision.verdict}: {decision.reason}")
        try:
            await self._arms.verify(self.decision, self._every_k.grid().cells, self._baseline.concurrencies)
            await self._baseline_again()
        except ProfilingError as error:
            if error.reason in ("Interrupted", "DiskFull"):
                raise
            self.lab.warn(f"the verification was broken off: {error}")
        return self.decision()

    def _measuring(self) -> None:
        say("measuring starts")
        self._on_measuring()
        self._on_measuring = lambda: None

    async def _baseline_again(self) -> None:
        """Where the verdict lies within what boots differ by."""
        undecided = verdict.undecided(self.decision(), self._measured(), self.request.weights)
        if undecided and self.lab.time_for_a_boot("the baseline again", AGAIN, self._baseline.least()):
            say("the verdict lies within what boots differ by: the baseline once more")
            await self._baseline.boot(lambda: None)

    def decision(self) -> Decision:
        """What the measurements say, with what else the user must know. Raises ProfilingError (NothingToMeasure)."""
        try:
            decision = verdict.decide(self._measured(), self.request.engine.max_num_seqs, self.request.weights)
        except ValueError as error:
            raise ProfilingError("NothingToMeasure", f"{error}; the partial profile has each cell's reason") from error
        return decision.model_copy(update={"warnings": (*decision.warnings, *self.lab.warnings)})

    def measurements(self) -> Measurements | None:
        """All that was measured so far; None before the first engine was up."""
        limits = self.lab.limits
        if limits is None:
            return None
        grid, acceptance = self._every_k.grid(), self._every_k.acceptance()
        drift, measured = self._baseline.drift()
        return Measurements(
            engine_version=limits.engine_version,
            device=limits.device,
            scheduler="async" if limits.scheduler == "async" else "sync",
            graph_sizes=limits.graph_sizes,
            grid=grid.cells,
            levels=grid.levels,
            acceptance=acceptance.acceptance,
            contrasts=acceptance.contrasts,
            spot_check=acceptance.spot_check,
            baseline=self._baseline.cells(),
            boot_drift=drift,
            boot_drift_measured=measured,
            loops=(*self._baseline.closed_loop(grid.cells), *self._arms.seen),
            mean_context_tokens=grid.mean_context,
            distinct_prompts=self.lab.prompts.distinct if self.lab.prompts else 0,
            seconds=dict(self.boots.seconds),
        )

    def _measured(self) -> Measurements:
        measured = self.measurements()
        if measured is None:
            raise ProfilingError("NothingToMeasure", "nothing was measured")
        return measured
