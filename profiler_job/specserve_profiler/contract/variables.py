"""References to environment variables, as the kubelet expands them in a container's command, args and env. Pure.

``$(NAME)`` is the value of a variable that the container's own spec says, and stays as it is where there is none.
``$$`` is a dollar sign.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

VALUE_PREFIX = "SPECSERVE_VALUE_"
"""A Job has the value of each variable that its engine's command line refers to, by the kubelet, under such a name."""
_REFERENCE = re.compile(r"\$(?:\$|\(([^)]*)\))")


def expand(text: str, variables: Mapping[str, str]) -> str:
    """What the kubelet makes of a text; once: what a value holds is not looked at."""
    return _REFERENCE.sub(lambda found: _value(found, variables), text)


def _value(found: re.Match[str], variables: Mapping[str, str]) -> str:
    return "$" if found[1] is None else variables.get(found[1], found[0])


def escape(text: str) -> str:
    """A text that the kubelet makes ``text`` of."""
    return text.replace("$", "$$")


def references(*texts: str) -> tuple[str, ...]:
    """Names of the variables that texts refer to, sorted."""
    found = {match[1] for text in texts for match in _REFERENCE.finditer(text) if match[1] is not None}
    return tuple(sorted(found))
