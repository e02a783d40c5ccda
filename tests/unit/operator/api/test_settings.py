"""Settings from the environment."""

from __future__ import annotations

import pytest

from specserve_operator.api.settings import Settings


def test_without_variables_the_defaults_count() -> None:
    assert Settings.from_environment({"POD_NAME": "local"}) == Settings()


def test_every_variable_has_its_setting() -> None:
    env = {
        "SPECSERVE_VARIANT_GRACE_SECONDS": "10",
        "SPECSERVE_RETRY_SECONDS": "1.5",
        "SPECSERVE_RETRY_LIMIT_SECONDS": "60",
        "SPECSERVE_RESYNC_SECONDS": "30",
        "SPECSERVE_PRIORITY_CLASS": "profiling",
        "SPECSERVE_WORKERS": "2",
        "SPECSERVE_LEASE_SECONDS": "30",
        "SPECSERVE_WATCH_SECONDS": "5",
        "SPECSERVE_WEDGED_SECONDS": "20",
        "POD_NAMESPACE": "system",
        "POD_NAME": "operator-1",
    }

    assert Settings.from_environment(env) == Settings(
        variant_grace_seconds=10,
        retry_seconds=1.5,
        retry_limit_seconds=60,
        resync_seconds=30,
        priority_class="profiling",
        workers=2,
        namespace="system",
        identity="operator-1",
        lease_seconds=30,
        watch_seconds=5,
        wedged_seconds=20,
    )


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("SPECSERVE_RETRY_SECONDS", "soon", "SPECSERVE_RETRY_SECONDS='soon': give a positive number"),
        ("SPECSERVE_RESYNC_SECONDS", "0", "SPECSERVE_RESYNC_SECONDS='0': give a positive number"),
        ("SPECSERVE_RESYNC_SECONDS", "nan", "SPECSERVE_RESYNC_SECONDS='nan': give a positive number"),
        ("SPECSERVE_VARIANT_GRACE_SECONDS", "-1", "SPECSERVE_VARIANT_GRACE_SECONDS='-1': give a positive number"),
        (
            "SPECSERVE_VARIANT_GRACE_SECONDS",
            "1e300",
            "SPECSERVE_VARIANT_GRACE_SECONDS='1e300': give a positive number, at most 315360000",
        ),
        ("SPECSERVE_WORKERS", "0.5", "SPECSERVE_WORKERS='0.5': give a whole number, at least 1"),
        ("SPECSERVE_LEASE_SECONDS", "5", "SPECSERVE_LEASE_SECONDS='5': give a whole number, at least 6"),
    ],
)
def test_a_bad_variable_is_named(name: str, text: str, message: str) -> None:
    with pytest.raises(ValueError) as raised:  # noqa: PT011 - the message is compared whole
        Settings.from_environment({name: text})

    assert str(raised.value) == message


def test_an_empty_variable_is_as_good_as_none() -> None:
    assert Settings.from_environment({"SPECSERVE_WORKERS": "", "POD_NAMESPACE": "", "POD_NAME": "local"}) == Settings()
