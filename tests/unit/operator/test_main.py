"""Starting the operator wrongly: the message names what is wrong, and the way out."""

from __future__ import annotations

from pathlib import Path

import pytest

from specserve_operator.main import cli


@pytest.mark.parametrize("content", [None, b"\x00\xe3\xff", b"- a list\n", b"{}"])
def test_a_kubeconfig_that_is_none(
    content: bytes | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "kubeconfig"
    if content is not None:
        path.write_bytes(content)
    monkeypatch.setenv("KUBECONFIG", str(path))

    with pytest.raises(SystemExit) as ended:
        cli([])

    assert ended.value.code == 2
    told = capsys.readouterr().err
    assert f"no service account, and no usable kubeconfig in {path}: " in told
    assert told.endswith("; set KUBECONFIG\n")


def test_a_log_level_that_is_none(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("SPECSERVE_LOG_LEVEL", "loud")

    with pytest.raises(SystemExit) as ended:
        cli([])

    assert ended.value.code == 2
    assert capsys.readouterr().err.endswith("SPECSERVE_LOG_LEVEL='LOUD': give one of DEBUG, INFO, WARNING, ERROR\n")


@pytest.mark.parametrize("url", ["", "healthz", "https://0.0.0.0:8080/", "http://0.0.0.0/", "http://0.0.0.0:port/"])
def test_an_address_of_probes_that_is_none(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli([f"--health={url}"])

    assert ended.value.code == 2
    assert f"argument --health: {url!r}: give a URL such as http://0.0.0.0:8080/healthz" in capsys.readouterr().err
