"""The least that making a set of objects can cost: a loop that server-side-applies them with the operator's own client.

``python -m bench.bare FILE CONCURRENCY``: one JSON object a line; the API server is that of KUBECONFIG.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from pathlib import Path

from specserve_operator.store.client import RESOURCES, Client


async def _work(client: Client, lines: Iterator[str]) -> None:
    for line in lines:
        obj = json.loads(line)
        await client.apply(RESOURCES[obj["kind"]], obj)


async def apply_all(path: Path, concurrency: int) -> None:
    """Apply every object, so many at a time."""
    with path.open(encoding="utf-8") as lines:
        async with await Client.connect() as client, asyncio.TaskGroup() as group:
            for _ in range(concurrency):
                group.create_task(_work(client, lines))


if __name__ == "__main__":
    asyncio.run(apply_all(Path(sys.argv[1]), int(sys.argv[2])))
