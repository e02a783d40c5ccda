"""The operator in a simulated cluster where anything may happen: what holds, and that each of it can fail."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test
from tests.soak import runs
from tests.unit.operator.model.invariants import BrokenError
from tests.unit.operator.model.story import Picker, Story
from tests.unit.operator.model.walk import walk
from tests.unit.operator.model.world import Loop

from specserve_operator.api.records import Json
from specserve_operator.decide import profiles, rollout, status, variants
from specserve_operator.decide.variants import Variant
from specserve_operator.manifests import pod, profiling
from specserve_operator.manifests.serving import Arm

T = TypeVar("T")
Patch = pytest.MonkeyPatch
MOST_WALKS = 40
"""In which a mutation must be caught."""


@pytest.fixture(autouse=True)
def loop(monkeypatch: Patch) -> Iterator[Loop]:
    logging.disable(logging.CRITICAL)
    made = Loop()
    yield made
    made.close()
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("seed", range(runs(70, 4000)))
def test_everything_holds_in_a_random_walk(loop: Loop, seed: int) -> None:
    walk(loop, seed)


class _Drawn(Picker):
    def __init__(self, data: st.DataObject) -> None:
        self._data = data

    def __call__(self, options: Sequence[T]) -> T:
        return options[self._data.draw(st.integers(0, len(options) - 1))]


with Loop() as _once:
    EVENTS = [event.__name__ for _, event in Story(_once).stories]


class Machine(RuleBasedStateMachine):
    """The same, told and made shorter by hypothesis."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = Loop()
        self.story = Story(self.loop)
        self.broken = False

    @rule(event=st.sampled_from(EVENTS), data=st.data())
    def happens(self, event: str, data: st.DataObject) -> None:
        self.broken = True
        self.story.tell(getattr(self.story, event), _Drawn(data))
        self.broken = False

    def teardown(self) -> None:
        if not self.broken:
            self.story.ends()
        self.loop.close()


def test_everything_holds_whatever_hypothesis_tells() -> None:
    # The same in each brief run; a whole one looks for new ones.
    chosen = settings(max_examples=runs(30, 2000), stateful_step_count=60, derandomize=runs(True, False))
    run_state_machine_as_test(Machine, settings=chosen)  # type: ignore[no-untyped-call]


# Mutations: each breaks one thing, and must be caught.


def replicas_jump(patch: Patch) -> None:
    patch.setattr(
        rollout, "step", lambda replicas, standings, goals, *_: {s.slug: goals.get(s.slug, 0) for s in standings}
    )


def all_roll_at_once(patch: Patch) -> None:
    patch.setattr(rollout, "may_roll", lambda *_: True)


def none_rolls(patch: Patch) -> None:
    patch.setattr(rollout, "may_roll", lambda *_: False)


def nothing_is_held(patch: Patch) -> None:
    patch.setattr(variants, "holds", lambda variant: False)


def old_tables_serve_new_engines(patch: Patch) -> None:
    target = variants.target

    def old(spec: Any, variant: Variant) -> Arm | None:
        arm = target(spec, variant)
        return Arm("Profile", variant.serving.config_map) if arm is None and variant.serving and variant.found else arm

    patch.setattr(variants, "target", old)


def jobs_have_ever_new_names(patch: Patch) -> None:
    made, numbers = profiling.job, itertools.count()

    def renamed(*args: Any, **more: Any) -> Json:
        job = made(*args, **more)
        return {**job, "metadata": {**job["metadata"], "name": f"{job['metadata']['name']}-{next(numbers)}"}}

    patch.setattr(profiling, "job", renamed)


def pods_go_anywhere(patch: Patch) -> None:
    patch.setattr(pod, "_place", lambda template, spec, accelerator: template)


def results_are_not_stored(patch: Patch) -> None:
    patch.setattr(profiles, "_outcome_of", lambda *_: profiles._failure("ResultInvalid", "lost"))


def the_status_tells_the_time(patch: Patch) -> None:
    report = status.report

    def dated(snapshot: Any, *args: Any) -> Any:
        return report(snapshot, *args).model_copy(update={"summary": str(snapshot.now)})

    patch.setattr(status, "report", dated)


MUTATIONS: list[tuple[Callable[[Patch], None], str]] = [
    (replicas_jump, "ready"),
    (all_roll_at_once, "rolling"),
    (none_rolls, "end"),
    (nothing_is_held, "last good"),
    (old_tables_serve_new_engines, "key"),
    (jobs_have_ever_new_names, "one Job"),
    (pods_go_anywhere, "accelerator"),
    (results_are_not_stored, "result"),
    (the_status_tells_the_time, "rest"),
]


@pytest.mark.parametrize(("mutation", "what"), MUTATIONS, ids=[mutation.__name__ for mutation, _ in MUTATIONS])
def test_what_is_broken_is_found(loop: Loop, monkeypatch: Patch, mutation: Callable[[Patch], None], what: str) -> None:
    mutation(monkeypatch)

    found = set()
    for seed in range(MOST_WALKS):
        try:
            walk(loop, seed, 150)
        except BrokenError as error:
            found.add(str(error).partition(":")[0])
        if what in found:
            return
    raise AssertionError(f"not found in {MOST_WALKS} walks, only {found or 'nothing'}")


def test_a_decision_that_raises_is_found(loop: Loop, monkeypatch: Patch) -> None:
    def report(*_: Any) -> None:
        raise KeyError("image")

    monkeypatch.setattr(status, "report", report)

    with pytest.raises(KeyError):
        walk(loop, 0, 50)
