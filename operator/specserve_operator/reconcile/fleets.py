"""One shared view of the fleet for all who ask alike, kept as nodes change; who asks is woken when *its* view changes.

A view equals ``identity.survey`` of all nodes at any time. A round reads it; none walks the nodes.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable

from specserve_operator.api.records import Node, Ref
from specserve_operator.api.serving import AcceleratorsSpec
from specserve_operator.decide.identity import Fleet, Found, Member, assemble, describe, judge
from specserve_operator.store.mirror import Mirror

TELL_SECONDS = 0.05
"""Changes of so long are one: a labeller writes one label after the other."""
SLICE = 200
"""Nodes that are judged before the event loop goes on."""


class View:
    """The fleet as one question sees it: resource, node selector and options of ``spec``, and a driver policy."""

    def __init__(self, spec: AcceleratorsSpec, driver_policy: str) -> None:
        self._spec, self._policy = spec, driver_policy
        self._verdicts: dict[str, Member | str] = {}
        self._groups: defaultdict[str, dict[str, Member]] = defaultdict(dict)
        self._reasons: defaultdict[str, set[str]] = defaultdict(set)
        self._found: dict[str, Found] = {}
        """Slug -> what is known of a group that has not changed since."""
        self._fleet: Fleet | None = None

    def put(self, name: str, node: Node | None) -> bool:
        """A node as it is now, or gone. Says whether it is another one to this question."""
        verdict = judge(node, self._spec, self._policy) if node is not None else None
        before = self._verdicts.get(name)
        if verdict == before:
            return False
        self._take_out(name, before)
        if verdict is None:
            return True
        self._verdicts[name] = verdict
        if isinstance(verdict, Member):
            self._groups[verdict.accelerator.slug][name] = verdict
            self._found.pop(verdict.accelerator.slug, None)
        else:
            self._reasons[verdict].add(name)
        return True

    def _take_out(self, name: str, before: Member | str | None) -> None:
        self._fleet = None
        if before is None:
            return
        del self._verdicts[name]
        if isinstance(before, Member):
            slug = before.accelerator.slug
            self._found.pop(slug, None)
            del self._groups[slug][name]
            if not self._groups[slug]:
                del self._groups[slug]
        else:
            self._reasons[before].discard(name)
            if not self._reasons[before]:
                del self._reasons[before]

    @property
    def fleet(self) -> Fleet:
        """What ``survey`` would say of all nodes."""
        if self._fleet is None:
            for slug, members in self._groups.items():
                if slug not in self._found:
                    self._found[slug] = describe(members.values())
            self._fleet = assemble({slug: self._found[slug] for slug in self._groups}, self._reasons)
        return self._fleet


class _Shared:
    """A view, those who ask for it, and what they were told last."""

    def __init__(self, view: View) -> None:
        self.view = view
        self.askers: set[Ref] = set()
        self.told: Fleet | None = None
        self.whole = asyncio.Event()


Question = tuple[str, str]


class Fleets:
    """The views of all servings. Everything runs on one loop."""

    def __init__(self, nodes: Mirror[Node], wake: Callable[[Ref], None]) -> None:
        self._nodes, self._wake = nodes, wake
        self._views: dict[Question, _Shared] = {}
        self._asked: dict[Ref, Question] = {}
        self._stale: dict[Question, None] = {}
        self._timer: asyncio.Handle | None = None
        nodes.on_change(self._changed)

    async def of(self, asker: Ref, spec: AcceleratorsSpec, driver_policy: str) -> Fleet:
        """The fleet as it is; ``asker`` is woken when it is another one."""
        question = (spec.model_dump_json(), driver_policy)
        if self._asked.get(asker) != question:
            self.forget(asker)
        self._asked[asker] = question
        shared = self._views.get(question)
        if shared is None:
            shared = self._views[question] = _Shared(View(spec, driver_policy))
            shared.askers.add(asker)
            await self._fill(shared)
        else:
            shared.askers.add(asker)
            await shared.whole.wait()
        self._tell(shared, but=asker)
        return shared.view.fleet

    def forget(self, asker: Ref) -> None:
        """It asks no more."""
        question = self._asked.pop(asker, None)
        shared = self._views.get(question) if question else None
        if question and shared:
            shared.askers.discard(asker)
            if not shared.askers:
                del self._views[question]

    async def _fill(self, shared: _Shared) -> None:
        """A slice at a time; nodes that change meanwhile are put by ``_changed`` already."""
        try:
            for number, ref in enumerate(self._nodes.refs()):
                if number % SLICE == SLICE - 1:
                    await asyncio.sleep(0)
                shared.view.put(ref.name, self._nodes.get(ref))
        finally:
            shared.whole.set()
        shared.told = shared.view.fleet

    def _changed(self, ref: Ref, before: Node | None, after: Node | None) -> None:
        for question, shared in self._views.items():
            if shared.view.put(ref.name, after):
                self._stale[question] = None
        if self._stale and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(TELL_SECONDS, self._tell_next)

    def _tell_next(self) -> None:
        """One view at a time: to assemble a large one takes milliseconds."""
        question = next(iter(self._stale))
        del self._stale[question]
        self._timer = asyncio.get_running_loop().call_soon(self._tell_next) if self._stale else None
        if shared := self._views.get(question):
            self._tell(shared)

    def _tell(self, shared: _Shared, but: Ref | None = None) -> None:
        """Wake all who were told of another fleet, or who will have seen another one."""
        if not shared.whole.is_set() or shared.view.fleet == shared.told:
            return
        shared.told = shared.view.fleet
        for asker in shared.askers - {but}:
            self._wake(asker)
