"""docs/method.md says which test guards against which way to be wrong."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_every_test_that_the_method_names_exists() -> None:
    named = set(re.findall(r"`(test_\w+)`", (ROOT / "docs/method.md").read_text()))
    sources = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    defined = set(re.findall(r"^(?:async )?def (test_\w+)\(", sources, flags=re.MULTILINE))

    assert len(named) > 15
    assert named <= defined, named - defined
