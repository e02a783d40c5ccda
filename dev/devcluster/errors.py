"""The one error that this tool shows to a person: what is wrong, and the way out."""

from __future__ import annotations


class DevclusterError(RuntimeError):
    """Something the caller can act on; the command line prints its text without a traceback."""
