"""Which room imports which, and what each says of itself. Only sources are read, nothing of them is run."""

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import grimp

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = {
    "specserve_operator": ROOT / "operator" / "specserve_operator",
    "specserve_profiler": ROOT / "profiler_job" / "specserve_profiler",
}


@dataclass(frozen=True)
class Room:
    """A folder of a package, or a module beside its folders."""

    package: str
    name: str
    says: str
    """First line of its docstring."""
    lines: int
    """Lines of code that are not blank, comments and docstrings included."""

    @property
    def module(self) -> str:
        """Its dotted name."""
        return f"{self.package}.{self.name}"


def rooms() -> list[Room]:
    """Every room of both packages by name, the package's own entry (``__main__``, ``__init__``) left out."""
    found = []
    for package, folder in PACKAGES.items():
        for path in sorted(folder.iterdir()):
            inside = sorted(path.glob("**/*.py")) if path.is_dir() else [path] if path.suffix == ".py" else []
            if not inside or path.stem.startswith("__"):
                continue
            first = path / "__init__.py" if path.is_dir() else path
            says = (ast.get_docstring(ast.parse(first.read_text())) or "").partition("\n")[0]
            found.append(Room(package, path.stem, says, sum(map(_lines, inside))))
    return found


def _lines(path: Path) -> int:
    return sum(1 for line in path.read_text().splitlines() if line.strip())


def arrows(modules: set[str]) -> dict[str, set[str]]:
    """Room -> the rooms that it imports."""
    graph = grimp.build_graph(*PACKAGES, cache_dir=None)
    found: dict[str, set[str]] = {module: set() for module in modules}
    for importer in graph.modules:
        for imported in graph.find_modules_directly_imported_by(importer):
            one, other = _room(importer), _room(imported)
            if one != other and one in modules and other in modules:
                found[one].add(other)
    return found


def _room(module: str) -> str:
    return ".".join(module.split(".")[:2])


def reduced(arrows: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """The same without arrows that a longer way says, too. Raises ValueError where there is a circle."""
    below: dict[str, set[str]] = {}

    def reach(room: str, way: tuple[str, ...]) -> set[str]:
        if room in way:
            raise ValueError(f"rooms import each other in a circle: {' -> '.join((*way, room))}")
        if room not in below:
            below[room] = set().union(*({other} | reach(other, (*way, room)) for other in arrows[room]))
        return below[room]

    for room in arrows:
        reach(room, ())
    return {
        room: {other for other in others if not any(other in below[between] for between in others)}
        for room, others in arrows.items()
    }
