"""Starting and stopping an engine's processes. The engine here is a few lines of Python; tests/engine has vLLM."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

import pytest

from devcluster.pace import patience
from specserve_profiler.contract.reasons import ProfilingError
from specserve_profiler.engine.server import free_port, running
from specserve_profiler.session.boots import PROBE, _unless_ended

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


def is_shared(name: str) -> bool:
    """Whether there is shared memory of this name."""
    return Path("/dev/shm", name).exists()


async def gone(pid: int) -> bool:
    for _ in range(int(patience(100))):
        if not alive(pid):
            return True
        await asyncio.sleep(0.05)
    return False


def soon() -> float:
    """A time by which an engine of a few lines has booted, or ended."""
    return time.monotonic() + patience(20)


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def command(script: str, *arguments: object) -> list[str]:
    return [sys.executable, "-c", script, *map(str, arguments)]


async def test_log_is_passed_on_and_every_process_is_gone_afterwards(tmp_path: Path) -> None:
    port, child_file, lines = free_port(), tmp_path / "child", list[str]()

    async with running(command(SERVER, port, child_file), port, tmp_path, soon(), lines.append) as engine:
        child = int(child_file.read_text())
        assert alive(child)
        with pytest.raises(ProfilingError, match="answered /tokenize with status 400: no such thing"):
            await engine.tokenize("text")

    assert lines == ["[gw0] loading"]
    assert await gone(child)


async def test_an_engine_finds_the_probe_by_its_name_and_still_the_standard_library(tmp_path: Path) -> None:
    script = f"import statistics, sys, pkgutil; pkgutil.resolve_name({PROBE!r}); sys.exit(statistics.__package__ or 7)"
    with pytest.raises(ProfilingError, match="ended with exit code 7 "):
        async with running(command(script), free_port(), tmp_path, soon(), print):
            pass


async def test_an_engine_that_ignores_sigterm_is_killed_with_its_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specserve_profiler.engine.server._STOP_SECONDS", 0.5)
    port, child_file = free_port(), tmp_path / "child"
    script = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + SERVER

    async with running(command(script, port, child_file), port, tmp_path, soon(), print):
        child = int(child_file.read_text())

    assert await gone(child)


async def test_an_engine_that_ends_at_boot_says_why(tmp_path: Path) -> None:
    line = "(EngineCore pid=7) ERROR 11-29 10:00:00 [core.py:1] ValueError: no such model"
    script = f"import sys; print({line!r}, flush=True); sys.exit(3)"

    with pytest.raises(ProfilingError) as caught:
        async with running(command(script), free_port(), tmp_path, soon(), print):
            pass

    assert caught.value.reason == "EngineFailed"
    assert str(caught.value).startswith(
        "the engine ended with exit code 3 while it started: ValueError: no such model."
    )


async def test_an_engine_that_ends_while_measured_is_told(tmp_path: Path) -> None:
    port, child_file = free_port(), tmp_path / "child"
    async with running(command(SERVER, port, child_file), port, tmp_path, soon(), print) as engine:
        os.kill(engine._process.pid, signal.SIGKILL)
        with pytest.raises(ProfilingError, match=r"by signal SIGKILL \(out of memory\?\) while it was measured"):
            await asyncio.wait_for(engine.watch(), patience(10))

    assert await gone(int(child_file.read_text()))


async def test_a_request_that_fails_is_told_without_what_only_a_client_knows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specserve_profiler.session.boots._ENDING_SECONDS", 0.1)
    says = "print('ValueError: the cache is torn', flush=True); "
    for answer, told in (
        (says + "self.send_response(500); self.end_headers()", "answered a request with status 500"),
        (says + "self.connection.close()", "broke off a request"),
    ):
        script = SERVER.replace(
            'self.send_response(400); self.end_headers(); self.wfile.write(b"no such thing")', answer
        )
        port = free_port()
        async with running(
            command(script, port, tmp_path / "child"), port, tmp_path, time.monotonic() + patience(20), print
        ) as engine:
            with pytest.raises(ProfilingError) as caught:
                await _unless_ended(engine, engine.tokenize("text"))

        assert caught.value.reason == "EngineCrashed"
        assert str(caught.value) == (f"the engine {told} and did not end; its log says: ValueError: the cache is torn")


async def test_what_the_engine_writes_for_a_terminal_is_told_as_a_terminal_shows_it(tmp_path: Path) -> None:
    port, lines = free_port(), list[str]()
    script = SERVER.replace("[gw0] loading", r"\033[0;36m(gw0)\033[0m loading\r 10%\r 90%")

    async with running(
        command(script, port, tmp_path / "child"), port, tmp_path, time.monotonic() + patience(20), lines.append
    ):
        pass

    assert lines == [" 90%"]


async def test_an_engine_that_is_never_healthy_is_given_up(tmp_path: Path) -> None:
    with pytest.raises(ProfilingError, match="not healthy in time; its last line: still loading") as caught:
        async with running(
            command("import time; print('still loading', flush=True); time.sleep(600)"),
            free_port(),
            tmp_path,
            time.monotonic() + patience(0.5),
            print,
        ):
            pass
    assert caught.value.reason == "TimedOut"


async def test_a_command_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(ProfilingError, match=r"engine\.command '/no/such/vllm' cannot be started: No such file"):
        async with running(["/no/such/vllm"], free_port(), tmp_path, soon(), print):
            pass


def test_an_engine_does_not_outlive_a_profiler_that_is_killed(tmp_path: Path) -> None:
    code = (
        "import asyncio, sys, time\n"
        "from pathlib import Path\n"
        "from specserve_profiler.engine.server import running\n"
        "async def main():\n"
        "    port, deadline = int(sys.argv[1]), time.monotonic() + 600\n"
        "    async with running(sys.argv[3:], port, Path(sys.argv[2]), deadline, print) as e:\n"
        "        print('pid', e._process.pid, flush=True)\n"
        "        await asyncio.sleep(600)\n"
        "asyncio.run(main())\n"
    )
    port = free_port()
    root = Path(__file__).parents[4] / "profiler_job"
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


FAMILY = """
import multiprocessing.shared_memory as shm, os, subprocess, sys, time
def settle(path, text):
    open(path + ".new", "w").write(text); os.rename(path + ".new", path)
if len(sys.argv) > 3:
    block = shm.SharedMemory(create=True, size=4096, track=False) if sys.version_info >= (3, 13) else None
    if block is None:
        from multiprocessing import resource_tracker
        block = shm.SharedMemory(create=True, size=4096)
        resource_tracker.unregister(block._name, "shared_memory")
    settle(sys.argv[2], f"{os.getpid()} {block.name}")
    time.sleep(600)
"""
ESCAPED = FAMILY + (
    "subprocess.Popen([sys.executable, '-c', open(sys.argv[2] + '.py').read(), *sys.argv[1:3], 'child'],"
    " start_new_session=True)\n"
    "while not os.path.exists(sys.argv[2]): time.sleep(0.02)\n"
)


async def test_a_child_in_a_session_of_its_own_and_its_shared_memory_are_gone_and_others_stay(tmp_path: Path) -> None:
    port, child_file = free_port(), tmp_path / "child"
    (tmp_path / "child.py").write_text(FAMILY)
    others = SharedMemory(create=True, size=64)
    try:
        async with running(
            command(ESCAPED + SERVER.replace("sys.argv[2]", "os.devnull"), port, child_file),
            port,
            tmp_path,
            soon(),
            print,
        ) as engine:
            child, name = child_file.read_text().split()
            assert alive(int(child)) and os.getsid(int(child)) != os.getsid(engine._process.pid)
            assert is_shared(name)

        assert not alive(int(child))
        assert not is_shared(name)
        assert is_shared(others.name)
    finally:
        others.close()
        others.unlink()


async def test_a_stop_that_is_interrupted_still_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specserve_profiler.engine.server._STOP_SECONDS", 36_000)
    port, child_file = free_port(), tmp_path / "child"
    script = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + SERVER
    started = asyncio.Event()

    async def use() -> None:
        async with running(command(script, port, child_file), port, tmp_path, soon(), print) as engine:
            pids.extend((engine._process.pid, int(child_file.read_text())))
            started.set()

    pids: list[int] = []
    task = asyncio.create_task(use())
    await started.wait()
    await asyncio.sleep(0.3)  # it waits for an engine that ignores SIGTERM
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, patience(10))

    assert not any(map(alive, pids))


async def test_an_engine_that_is_given_up_while_it_boots_is_gone(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    script = f"import os, time; open({str(pid_file)!r}, 'w').write(str(os.getpid())); time.sleep(600)"

    async def use() -> None:
        async with running(command(script), free_port(), tmp_path, soon(), print):
            pass

    task = asyncio.create_task(use())
    for _ in range(int(patience(100))):
        await asyncio.sleep(0.05)
        if pid_file.exists() and pid_file.read_text():
            break
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not alive(int(pid_file.read_text()))


async def test_what_the_engine_says_of_a_prompt_is_told_without_the_prompt(tmp_path: Path) -> None:
    port, child_file = free_port(), tmp_path / "child"
    echo = SERVER.replace(
        'self.wfile.write(b"no such thing")',
        'self.wfile.write(b"refused: " + self.rfile.read(int(self.headers["content-length"])))',
    )
    async with running(command(echo, port, child_file), port, tmp_path, soon(), print) as engine:
        with pytest.raises(ProfilingError, match="answered /tokenize with status 400: refused: ") as caught:
            await engine.tokenize_chat({"messages": [{"role": "system", "content": "be brief"}, user("my diagnosis")]})
    assert "my diagnosis" not in str(caught.value) and "be brief" not in str(caught.value)


@pytest.mark.parametrize("quoted", ["said", "repr(json.loads(said))"])
@pytest.mark.parametrize("secret", ['it"s\nmy diagnosis', "моя\nдиагноз тайна", "'HIV'", "HIV"])
async def test_no_spelling_of_a_prompt_is_told(tmp_path: Path, secret: str, quoted: str) -> None:
    """Engines quote a request as JSON or as Python's repr, where quotes, ends of lines and letters look otherwise."""
    port, child_file = free_port(), tmp_path / "child"
    echo = SERVER.replace("import http", "import json, http").replace(
        'self.wfile.write(b"no such thing")',
        'said = self.rfile.read(int(self.headers["content-length"])).decode()\n'
        f'        self.wfile.write(("no user may say that: " + {quoted}).encode())',
    )
    chat = {"messages": [user(secret)], "tools": [{"type": "function", "function": {"name": secret}}]}
    async with running(command(echo, port, child_file), port, tmp_path, soon(), print) as engine:
        with pytest.raises(ProfilingError, match="status 400: no user may say that: ") as of_chat:
            await engine.tokenize_chat(chat)
        with pytest.raises(ProfilingError, match="status 400: no user may say that: ") as of_text:
            await engine.tokenize(secret)
        with pytest.raises(ProfilingError, match="status 400: no user may say that: ") as of_ids:
            await engine.complete([[4711, 4712, 4713, 4714]])
    assert of_chat.value.reason == of_text.value.reason == "PromptsInvalid"
    assert of_ids.value.reason == "EngineFailed" and "4712" not in str(of_ids.value)
    for word in ("diagnosis", "диагноз", json.dumps("диагноз")[1:-1], "HIV"):
        assert word not in str(of_chat.value) and word not in str(of_text.value)


async def test_a_request_carries_our_name_and_a_chat_without_template_is_told_apart(tmp_path: Path) -> None:
    port, child_file = free_port(), tmp_path / "child"
    answers = SERVER.replace(
        'self.send_response(400); self.end_headers(); self.wfile.write(b"no such thing")',
        "name = self.headers.get('X-Request-Id'); self.send_response(200 if name else 400)\n"
        "        self.send_header('content-type', 'application/json'); self.end_headers()\n"
        "        known = b'{\"name\": \"%s\"}' % (name or '').encode()\n"
        "        self.wfile.write(known if name else b'you must provide a chat template')",
    )
    async with running(command(answers, port, child_file), port, tmp_path, soon(), print) as engine:
        assert await engine.complete([[1]], request_id="g7x", max_tokens=1) == {"name": "g7x"}
        assert await engine.tokenize_chat({"messages": [user("hello")]}) is None
