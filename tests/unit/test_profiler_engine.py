"""Starting and stopping an engine's processes. The engine here is a few lines of Python; tests/engine has vLLM."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from specserve_profiler.engine import error_line, free_port, running
from specserve_profiler.errors import ProfilingError

SERVER = """
import http.server, subprocess, sys, time
print("[gw0] loading", flush=True)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
open(sys.argv[2], "w").write(str(child.pid))
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.send_header("content-type", "application/json"); self.end_headers()
        self.wfile.write(b'{"data": [{"id": "served-name"}]}')
    def do_POST(self):
        self.send_response(400); self.end_headers(); self.wfile.write(b"no such thing")
    def log_message(self, *arguments): pass
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def gone(pid: int) -> bool:
    for _ in range(100):
        if not alive(pid):
            return True
        await asyncio.sleep(0.05)
    return False


def command(script: str, *arguments: object) -> list[str]:
    return [sys.executable, "-c", script, *map(str, arguments)]


async def test_log_is_passed_on_and_every_process_is_gone_afterwards(tmp_path: Path) -> None:
    port, child_file, lines = free_port(), tmp_path / "child", list[str]()

    async with running(
        command(SERVER, port, child_file), port, tmp_path, time.monotonic() + 20, lines.append
    ) as engine:
        child = int(child_file.read_text())
        assert alive(child)
        with pytest.raises(ProfilingError, match="answered /tokenize with status 400: no such thing"):
            await engine.tokenize("text")

    assert lines == ["[gw0] loading"]
    assert await gone(child)


async def test_an_engine_that_ignores_sigterm_is_killed_with_its_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specserve_profiler.engine._STOP_SECONDS", 0.5)
    port, child_file = free_port(), tmp_path / "child"
    script = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + SERVER

    async with running(command(script, port, child_file), port, tmp_path, time.monotonic() + 20, print):
        child = int(child_file.read_text())

    assert await gone(child)


async def test_an_engine_that_ends_at_boot_says_why(tmp_path: Path) -> None:
    line = "(EngineCore pid=7) ERROR 11-29 10:00:00 [core.py:1] ValueError: no such model"
    script = f"import sys; print({line!r}, flush=True); sys.exit(3)"

    with pytest.raises(ProfilingError) as caught:
        async with running(command(script), free_port(), tmp_path, time.monotonic() + 20, print):
            pass

    assert caught.value.reason == "EngineFailed"
    assert str(caught.value).startswith(
        "the engine ended with exit code 3 while it started: ValueError: no such model."
    )


async def test_an_engine_that_ends_while_measured_is_told(tmp_path: Path) -> None:
    port, child_file = free_port(), tmp_path / "child"
    async with running(command(SERVER, port, child_file), port, tmp_path, time.monotonic() + 20, print) as engine:
        os.kill(engine._process.pid, signal.SIGKILL)
        with pytest.raises(ProfilingError, match=r"by signal SIGKILL \(out of memory\?\) while it was measured"):
            await asyncio.wait_for(engine.watch(), 10)

    assert await gone(int(child_file.read_text()))


async def test_an_engine_that_is_never_healthy_is_given_up(tmp_path: Path) -> None:
    with pytest.raises(ProfilingError, match="not healthy in time; its last line: still loading") as caught:
        async with running(
            command("import time; print('still loading', flush=True); time.sleep(60)"),
            free_port(),
            tmp_path,
            time.monotonic() + 1.5,
            print,
        ):
            pass
    assert caught.value.reason == "TimedOut"


async def test_a_command_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(ProfilingError, match=r"engine\.command '/no/such/vllm' cannot be started: No such file"):
        async with running(["/no/such/vllm"], free_port(), tmp_path, time.monotonic() + 5, print):
            pass


def test_an_engine_does_not_outlive_a_profiler_that_is_killed(tmp_path: Path) -> None:
    code = (
        "import asyncio, sys, time\n"
        "from pathlib import Path\n"
        "from specserve_profiler.engine import running\n"
        "async def main():\n"
        "    port, deadline = int(sys.argv[1]), time.monotonic() + 20\n"
        "    async with running(sys.argv[3:], port, Path(sys.argv[2]), deadline, print) as e:\n"
        "        print('pid', e._process.pid, flush=True)\n"
        "        await asyncio.sleep(600)\n"
        "asyncio.run(main())\n"
    )
    port = free_port()
    root = Path(__file__).parents[2] / "profiler_job"
    profiler = subprocess.Popen(
        [sys.executable, "-c", code, str(port), str(tmp_path), *command(SERVER, port, tmp_path / "child")],
        env={**os.environ, "PYTHONPATH": str(root)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert profiler.stdout is not None
    engine = next(int(line.split()[1]) for line in profiler.stdout if line.startswith("pid"))
    try:
        profiler.kill()
        profiler.wait()
        assert asyncio.run(gone(engine))
    finally:
        with suppress(ProcessLookupError):
            os.killpg(engine, signal.SIGKILL)


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (
            [
                "(EngineCore pid=5) ERROR 11-29 19:23:31 [core.py:866] Traceback (most recent call last):",
                "(EngineCore pid=5) ERROR 11-29 19:23:31 [core.py:866]   File x",
                "(EngineCore pid=5) ERROR 11-29 19:23:31 [core.py:866] torch.OutOfMemoryError: CUDA out of memory.",
                "(APIServer pid=2) RuntimeError: Engine core initialization failed. See root cause above. Failed: {}",
            ],
            "torch.OutOfMemoryError: CUDA out of memory.",
        ),
        (
            ["usage: vllm serve", "api_server.py: error: unrecognized arguments: --nope"],
            "api_server.py: error: unrecognized arguments: --nope",
        ),
        (["something", "", "  "], "something"),
        ([], "the engine wrote nothing"),
    ],
)
def test_the_line_that_says_why(lines: list[str], expected: str) -> None:
    assert error_line(lines) == expected
