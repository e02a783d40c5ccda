"""Datasets of a hub, with the hub's own client as vLLM's image has it, from a hub of a few lines on this machine."""

import hashlib
import http.server
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.vllm
TURNS = [{"category": "writing", "turns": [f"Question {i}?", "And then?"]} for i in range(80)]
DATASETS: dict[str, dict[str, bytes]] = {
    "philschmid/mt-bench": {
        "README.md": b"# MT-Bench",
        "question.jsonl": "\n".join(map(json.dumps, TURNS)).encode(),
    },
    "some/chats": {
        "data/train.json": json.dumps(
            [{"conversations": [{"from": "human", "value": f"Hello {i}"}]} for i in range(9)] + [{"conversations": []}]
        ).encode(),
        "data/test.csv": b"prompt\r\nOne\r\nTwo\r\n",
        "data/dev.parquet": b"PAR1",
    },
}
COMMIT = "0123456789abcdef0123456789abcdef01234567"
READ = """
import asyncio, json, sys
from specserve_profiler.contract.request import MT_BENCH, HubDataset, PromptSource
from specserve_profiler.contract.reasons import ProfilingError
from specserve_profiler.prompts.workload import load
said = []
hub = MT_BENCH if sys.argv[1] == "mt-bench" else HubDataset(**json.loads(sys.argv[1]))
try:
    entries = asyncio.run(load(PromptSource(hub=hub), said.append))
    print(json.dumps({"texts": [entry.text for entry in entries], "said": said}))
except ProfilingError as error:
    print(json.dumps({"reason": error.reason, "message": str(error)}))
"""


class Hub(http.server.BaseHTTPRequestHandler):
    """As much of the hub's protocol as its client needs to list and download the files of a dataset."""

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        for name, files in DATASETS.items():
            if path == f"/api/datasets/{name}/tree/main":
                listing = [{"type": "file", "path": f, "size": len(c), "oid": "0" * 40} for f, c in files.items()]
                return self._answer(json.dumps(listing).encode())
            for file, content in files.items():
                if path == f"/datasets/{name}/resolve/main/{file}":
                    return self._answer(content)
        self.send_response(404)
        self.send_header("X-Error-Code", "RepoNotFound")
        self.send_header("content-length", "0")
        self.end_headers()
        return None

    def _answer(self, content: bytes) -> None:
        self.send_response(200)
        self.send_header("content-length", str(len(content)))
        self.send_header("content-type", "application/json")
        self.send_header("ETag", f'"{hashlib.sha1(content, usedforsecurity=False).hexdigest()}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def log_message(self, *arguments: object) -> None:
        """Nothing."""


@pytest.fixture(scope="module")
def hub() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()


@pytest.fixture
def read(run_in_engine: Callable[..., Any], tmp_path: Path, hub: str) -> Callable[..., dict[str, Any]]:
    def run(dataset: str | dict[str, str], endpoint: str = hub, **variables: str) -> dict[str, Any]:
        argument = dataset if isinstance(dataset, str) else json.dumps(dataset)
        environment = {"HF_ENDPOINT": endpoint, "HF_HUB_OFFLINE": "0", "HF_HOME": str(tmp_path), **variables}
        done = run_in_engine("-c", READ, argument, **environment)
        answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return answer

    return run


def test_mt_bench_is_downloaded_and_then_read_from_the_cache_without_a_hub(read: Callable[..., dict[str, Any]]) -> None:
    expected = {
        "texts": [f"Question {i}?" for i in range(80)],
        "said": [
            "dataset philschmid/mt-bench: question.jsonl",
            "80 prompts from dataset philschmid/mt-bench",
        ],
    }
    assert read("mt-bench") == expected
    assert read("mt-bench", endpoint="http://127.0.0.1:9", HF_HUB_OFFLINE="1") == expected


def test_a_split_of_any_dataset_is_read(read: Callable[..., dict[str, Any]]) -> None:
    found = read({"name": "some/chats", "revision": "main"})

    assert found["texts"] == [f"Hello {i}" for i in range(9)]
    assert found["said"][-1] == "9 prompts from dataset some/chats; 1 more have no prompt and are left out"


@pytest.mark.parametrize(
    ("dataset", "reason", "message"),
    [
        (
            {"name": "some/nothing"},
            "DatasetUnreachable",
            "dataset some/nothing cannot be read (RepositoryNotFoundError): there is no such dataset, or it is private",
        ),
        (
            {"name": "some/chats", "split": "test"},
            "PromptsInvalid",
            "dataset some/chats holds 2 distinct prompts: give at least 4",
        ),
        (
            {"name": "some/chats", "split": "dev"},
            "PromptsInvalid",
            "dataset some/chats, data/dev.parquet is a Parquet file: install pyarrow (or datasets)",
        ),
        (
            {"name": "some/chats", "column": "story"},
            "PromptsInvalid",
            "dataset some/chats, data/train.json, entry 1: has no column story; its columns: conversations",
        ),
        (
            {"name": "some/chats", "split": "validation"},
            "PromptsInvalid",
            "dataset some/chats: no .jsonl, .json, .csv or .parquet file of split 'validation'; its data files: data",
        ),
    ],
)
def test_what_cannot_be_read_is_named_with_the_way_out(
    read: Callable[..., dict[str, Any]], dataset: dict[str, str], reason: str, message: str
) -> None:
    found = read(dataset)
    assert found["reason"] == reason
    assert found["message"].startswith(message)


def test_offline_and_not_in_the_cache_is_said(read: Callable[..., dict[str, Any]]) -> None:
    found = read("mt-bench", HF_HUB_OFFLINE="1")

    assert found["reason"] == "DatasetUnreachable"
    assert found["message"].startswith("dataset philschmid/mt-bench cannot be read (LocalEntryNotFoundError): ")
    assert "HF_HUB_OFFLINE" in found["message"]
