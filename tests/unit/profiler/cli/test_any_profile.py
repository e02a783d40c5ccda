"""Whatever the contract takes can be shown, compared, sent and served from: no door ends in a fault of its own."""

from __future__ import annotations

import json
import math
from typing import Any

from hypothesis import HealthCheck, given, settings
from tests.builders import NAMESPACE
from tests.soak import runs
from tests.unit.profiler import profiles_sample
from tests.unit.profiler.contract.any_profile import any_partial, any_profile

from specserve_operator.api.records import ConfigMap
from specserve_operator.decide.profiles import stored_profiles
from specserve_operator.manifests import profiling
from specserve_profiler.cli.load import parse_profile
from specserve_profiler.contract.key import KeyInputs
from specserve_profiler.contract.message import decode, encode
from specserve_profiler.contract.profile import PartialProfile, Profile
from specserve_profiler.contract.request import Engine, Speculation, Workload
from specserve_profiler.dialect import render
from specserve_profiler.reports import text
from specserve_profiler.reports.compare import compare
from specserve_profiler.reports.html import page
from specserve_profiler.reports.serving import serving_words

OTHER = profiles_sample.profile()
EXAMPLES = runs(100, 2000)
some = settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
few = settings(some, max_examples=max(EXAMPLES // 10, 1))


@some
@given(any_profile() | any_partial())
def test_it_is_written_and_read_again_as_it_was(profile: Profile | PartialProfile) -> None:
    assert parse_profile(profile.to_json(), "x.json") == profile


@some
@given(any_profile() | any_partial())
def test_it_is_a_report_for_a_terminal(profile: Profile | PartialProfile) -> None:
    lines = text.report(profile).splitlines()

    assert lines[0].startswith(("Profile ", "PARTIAL profile"))


@few
@given(any_profile() | any_partial())
def test_it_is_a_page(profile: Profile | PartialProfile) -> None:
    assert page([profile]).endswith("</html>\n")


@some
@given(any_profile(), any_profile())
def test_it_is_compared(before: Profile, after: Profile) -> None:
    for one, two in ((before, after), (before, before), (before, OTHER), (OTHER, after)):
        found = compare(one, two)

        assert all(math.isfinite(moved.ratio) and moved.ratio > 0 for moved in (*found.itl, *found.acceptance))
        assert found.verdicts == (one.decision.verdict, two.decision.verdict)


@some
@given(any_profile())
def test_it_leaves_a_pod_or_is_told_not_to_fit(profile: Profile) -> None:
    try:
        message = encode(profile)
    except ValueError as error:
        if "does not fit into 3000 bytes" not in str(error):
            raise
        return
    found = decode(message)

    assert isinstance(found, Profile)
    assert (found.decision.verdict, found.decision.table) == (profile.decision.verdict, profile.decision.table)


@some
@given(any_profile())
def test_an_engine_can_be_told_to_serve_by_it(profile: Profile) -> None:
    speculation = Speculation(method="ngram", max_tokens=16)
    config = render.speculative_config(speculation, profile.decision)

    assert config is None or 1 <= config["num_speculative_tokens"] <= 16
    if profile.request is not None:
        assert serving_words(profile, profile.request).startswith("Serve with")


@some
@given(any_profile())
def test_the_operator_stores_and_reads_it(profile: Profile) -> None:
    inputs = KeyInputs(
        schema_version=2,
        model="org/target",
        speculation=Speculation(method="ngram", max_tokens=16),
        image="vllm",
        engine=Engine(max_num_seqs=8, max_model_len=512),
        workload=Workload(prompt_tokens=32, output_tokens=64),
        workload_source="sha256:0",
        batch_sizes=(1, 8),
        accelerator={"product": "L4"},
    )
    profile = profile.model_copy(
        update={"key": "specserve-0123456789ab", "measurements": _of(profile, engine_version="0.33.0")}
    )

    shelf = stored_profiles([ConfigMap.read(json.loads(json.dumps(profiling.profile(NAMESPACE, profile, inputs))))])

    assert shelf.problems == {}
    assert [(s.decision, s.measured_at) for s in shelf.valid["specserve-0123456789ab"]] == [
        (profile.decision, profile.measured_at)
    ]


def _of(profile: Profile, **changes: Any) -> Any:
    return profile.measurements.model_copy(update=changes)
