"""Why an engine ended: excerpts of logs of vLLM 0.32, provoked on the CPU; those of a GPU are words of its source."""

import signal

import pytest

from specserve_profiler.contract.reasons import EXIT_CODES, exit_code
from specserve_profiler.engine.diagnosis import diagnose, diagnose_measured, error_line

CORE = "(EngineCore pid=69) ERROR 11-29 22:06:03 [core.py:1510] "
WORKER = "(Worker pid=70) ERROR 11-29 22:06:01 [multiproc_executor.py:953] "
FAILED = "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"
NEWS = (
    "(APIServer pid=68) WARNING 11-29 22:05:44 [system_utils.py:255] errors like `OSError: [Errno 28]` may come.",
    "(APIServer pid=68) INFO 11-29 22:06:13 [api_utils.py:286] non-default args: {'model': 'No space left on device'}",
)
PYDANTIC = (
    "pydantic_core._pydantic_core.ValidationError: 1 validation error for SpeculativeConfig",
    "  Value error, {}",
    "    For further information visit https://errors.pydantic.dev/2.14/v/value_error",
)


def pydantic(text: str) -> list[str]:
    return [line.format(text) for line in PYDANTIC]


@pytest.mark.parametrize(
    ("lines", "reason", "cause", "way_out"),
    [
        (
            [
                WORKER + "safetensors._safetensors_rust.SafetensorError: Error while deserializing header: incomplete "
                "metadata, file not fully covered",
                CORE + "Exception: WorkerProc initialization failed due to an exception in a background process. See "
                "stack trace for root cause.",
                FAILED,
            ],
            "ModelUnreadable",
            "safetensors._safetensors_rust.SafetensorError: Error while deserializing header",
            "download them again",
        ),
        (
            ["huggingface_hub.errors.HFValidationError: Repo id must be in the form 'namespace/repo_name': '/no'"],
            "ModelUnreadable",
            "huggingface_hub.errors.HFValidationError: Repo id must be",
            "check model and speculation.model",
        ),
        (
            ["huggingface_hub.errors.LocalEntryNotFoundError: Cannot find an appropriate cached snapshot folder"],
            "ModelUnreadable",
            "huggingface_hub.errors.LocalEntryNotFoundError",
            "the access to the hub",
        ),
        (
            pydantic("Invalid repository ID or local directory specified: '/no/such/drafter'."),
            "ModelUnreadable",
            "Value error, Invalid repository ID or local directory specified: '/no/such/drafter'.",
            "check model and speculation.model",
        ),
        (
            ["huggingface_hub.errors.GatedRepoError: 403 Client Error. Cannot access gated repo for url"],
            "ModelUnreadable",
            "huggingface_hub.errors.GatedRepoError",
            "set HF_TOKEN",
        ),
        (
            pydantic(
                "Target and draft model should have the same vocabulary size. Target model vocab_size=1024. "
                "Draft model vocab_size=777. Using models with different tokenizers can cause out-of-bounds errors."
            ),
            "DrafterMismatch",
            "Value error, Target and draft model should have the same vocabulary size. Target model vocab_size=1024.",
            "a drafter must have the tokenizer of its target",
        ),
        (
            [
                CORE
                + "RuntimeError: Worker failed with error 'Available memory on node 0 (16.65/18.59 GiB) on kv cache "
                "allocation is less than requested memory for kv (4000.0 GiB). Decrease --kv-cache-memory-bytes, "
                "VLLM_CPU_KVCACHE_SPACE, or reduce CPU memory used by other processes.'",
                FAILED,
            ],
            "OutOfMemory",
            "RuntimeError: Worker failed with error 'Available memory on node 0",
            "set VLLM_CPU_KVCACHE_SPACE",
        ),
        (
            [
                CORE
                + "ValueError: To serve at least one request with the model's max seq len (512), (0.01 GiB KV cache "
                "is needed, which is larger than the available KV cache memory (0.0 GiB). Based on the available "
                "memory, the estimated maximum model length is 256.",
                CORE + "Worker proc VllmWorker-0 died unexpectedly (exit code: None), shutting down executor.",
                FAILED,
            ],
            "OutOfMemory",
            "ValueError: To serve at least one request with the model's max seq len (512)",
            "a smaller engine.maxModelLen",
        ),
        (
            [CORE + "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB.", FAILED],
            "OutOfMemory",
            "torch.OutOfMemoryError: CUDA out of memory.",
            "--gpu-memory-utilization",
        ),
        (
            [
                CORE + "Worker proc VllmWorker-0 died unexpectedly (exit code: -9), shutting down executor.",
                FAILED,
            ],
            "OutOfMemory",
            "Worker proc VllmWorker-0 died unexpectedly (exit code: -9)",
            "raise the container's memory limit",
        ),
        (
            ["    sock.bind(addr)", "OSError: [Errno 98] Address already in use"],
            "PortInUse",
            "OSError: [Errno 98] Address already in use",
            "end what listens there",
        ),
        (
            [CORE + "OSError: [Errno 28] No space left on device: '/tmp/specserve-x/limits.json.new'", FAILED],
            "DiskFull",
            "OSError: [Errno 28] No space left on device",
            "free some",
        ),
        (
            ["RuntimeError: Insufficient space in /dev/shm for ring: 160 MiB required, 64 MiB free."],
            "DiskFull",
            "RuntimeError: Insufficient space in /dev/shm",
            "/dev/shm more",
        ),
        (
            ["usage: vllm serve", "api_server.py: error: unrecognized arguments: --nope"],
            "ArgumentsInvalid",
            "api_server.py: error: unrecognized arguments: --nope",
            "correct engine.args",
        ),
        (
            ["api_server.py: error: unrecognized arguments: --scheduler-cls=specserve_profiler.engine.probe.scheduler"],
            "EngineUnsupported",
            "api_server.py: error: unrecognized arguments: --scheduler-cls",
            "vLLM 0.24 or newer",
        ),
        (
            [CORE + "RuntimeError: something nobody foresaw", FAILED],
            "EngineFailed",
            "RuntimeError: something nobody foresaw",
            "check image, engine.args and the models",
        ),
        ([], "EngineFailed", "the engine wrote nothing", "check image"),
    ],
)
def test_a_boot_that_failed_has_a_reason_its_cause_and_the_way_out(
    lines: list[str], reason: str, cause: str, way_out: str
) -> None:
    found = diagnose([*NEWS, *lines] if lines else [], 1)

    assert found.reason == reason
    assert found.cause.startswith(cause)
    assert way_out in found.way_out
    assert exit_code(reason) in (2, 4, 7)


def test_a_kill_that_nobody_explains_is_taken_for_the_kernels() -> None:
    assert diagnose(["Loading weights"], -signal.SIGKILL).reason == "OutOfMemory"
    assert diagnose(["Loading weights"], -signal.SIGSEGV).reason == "EngineFailed"


@pytest.mark.parametrize(
    ("line", "reason", "cause"),
    [
        (
            "torch.OutOfMemoryError: CUDA out of memory.",
            "EngineCrashed",
            "torch.OutOfMemoryError: CUDA out of memory. (out of memory)",
        ),
        ("RuntimeError: CUDA error: illegal access", "EngineCrashed", "RuntimeError: CUDA error: illegal access"),
        ("OSError: [Errno 28] No space left on device", "DiskFull", "OSError: [Errno 28] No space left on device"),
    ],
)
def test_while_it_is_measured_all_but_a_full_disk_is_a_crash_in_a_cell(line: str, reason: str, cause: str) -> None:
    dead = "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace (above)."
    found = diagnose_measured([CORE + line, dead], 1)
    assert (found.reason, found.cause) == (reason, cause)


def test_a_core_that_was_killed_is_told_in_a_sentence() -> None:
    """As vLLM 0.32 logs it when its core gets SIGKILL amid requests."""
    monitor = "(APIServer pid=29261) WARNING 12-01 01:23:42 [core_client.py:817] "
    server = "(APIServer pid=29261) ERROR 12-01 01:23:42 [async_llm.py:906] "
    found = diagnose_measured(
        [
            monitor + "[shutdown] MPClient: engine core exited unexpectedly; starting cleanup",
            server + "AsyncLLM output_handler failed.",
            server + "Traceback (most recent call last):",
            server
            + "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace "
            + "(above) for the root cause.",
            'INFO:     127.0.0.1:41234 - "POST /v1/completions HTTP/1.1" 500 Internal Server Error',
            "INFO:     Finished server process [29261]",
        ],
        0,
    )

    assert found.reason == "EngineCrashed"
    assert found.cause == "its core process was killed from outside, most likely by the kernel for its memory"
    assert found.way_out.startswith("raise the container's memory limit, or set VLLM_CPU_KVCACHE_SPACE")


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (
            [
                CORE + "Traceback (most recent call last):",
                CORE + "  File x",
                CORE + "RuntimeError: no such kernel.",
                FAILED,
            ],
            "RuntimeError: no such kernel.",
        ),
        (
            ["usage: vllm serve", "api_server.py: error: unrecognized arguments: --nope"],
            "api_server.py: error: unrecognized arguments: --nope",
        ),
        ([FAILED], FAILED),
        (["something", "", "  "], "something"),
        ([], "the engine wrote nothing"),
    ],
)
def test_the_line_that_says_why(lines: list[str], expected: str) -> None:
    assert error_line(lines) == expected


def test_exit_codes_are_those_documented() -> None:
    assert EXIT_CODES["ProfilerFailed"] == exit_code("SomethingOfALaterVersion") == 1
    assert EXIT_CODES["ArgumentsInvalid"] == 2
    assert EXIT_CODES["PromptsInvalid"] == EXIT_CODES["DatasetUnreachable"] == 3
    assert EXIT_CODES["OutOfMemory"] == EXIT_CODES["DrafterMismatch"] == EXIT_CODES["ModelUnreadable"] == 4
    assert EXIT_CODES["EngineCrashed"] == EXIT_CODES["EngineHung"] == 5
    assert EXIT_CODES["TimedOut"] == 6
    assert EXIT_CODES["DiskFull"] == EXIT_CODES["OutputUnwritable"] == 7
    assert EXIT_CODES["Interrupted"] == 143
