"""The rooms as text for a page: a Mermaid graph, and a table of what each says of itself."""

from collections.abc import Iterable, Iterator, Mapping

from rooms.read import PACKAGES, Room, arrows, reduced, rooms

BEGIN, END = "<!-- python -m rooms: begin -->", "<!-- python -m rooms: end -->"
PURE = frozenset(
    {f"specserve_operator.{name}" for name in ("decide", "manifests", "api")}
    | {f"specserve_profiler.{name}" for name in ("contract", "dialect", "statistics", "decision")}
)
"""Rooms without I/O; the import contracts in pyproject.toml keep them so."""


def picture() -> str:
    """Both packages, an arrow for what a room imports; what a longer way says, too, is left out."""
    every = rooms()
    return "\n".join(["```mermaid", *_graph(every, reduced(arrows({room.module for room in every}))), "```"])


def _graph(every: Iterable[Room], drawn: Mapping[str, set[str]]) -> Iterator[str]:
    yield "flowchart TD"
    for package in PACKAGES:
        yield f"  subgraph {package}"
        for room in every:
            if room.package == package:
                shape = f"([{room.name}])" if room.module in PURE else f"[{room.name}]"
                yield f"    {_id(room.module)}{shape}"
        yield "  end"
    for module, others in sorted(drawn.items()):
        for other in sorted(others):
            yield f"  {_id(module)} --> {_id(other)}"


def _id(module: str) -> str:
    return module.replace("specserve_", "").replace(".", "_")


def table() -> str:
    """What each room says of itself."""
    lines = ["| room | what it knows | I/O |", "|---|---|---|"]
    for room in rooms():
        says = room.says.removesuffix(" Pure.")
        lines.append(f"| `{room.module}` | {says} | {'**no**' if room.module in PURE else 'yes'} |")
    return "\n".join(lines)


def lines_of_code() -> str:
    """Lines of code by room, for a figure in docs/."""
    return "\n".join(f"{room.lines:6} {room.module}" for room in rooms())


def section() -> str:
    """What stands between the marks of docs/architecture.md."""
    return f"{BEGIN}\n{picture()}\n\n{table()}\n{END}"
