"""What a profile says should be served, as arguments of vLLM."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from specserve_profiler.contract.profile import Arm, Profile
from specserve_profiler.contract.request import ProfileRequest, Speculation
from specserve_profiler.dialect import render


def arm_arguments(
    speculation: Speculation, arm: Arm, capture_sizes: Sequence[int], args: Sequence[str], version: str | None = None
) -> list[str]:
    """Arguments for one arm beside the user's own ``args``; empty where it does not speculate.

    Raises ValueError where vLLM ``version`` cannot take them.
    """
    config = render.arm_config(speculation, arm, version)
    if config is None:
        return []
    text = render.config_text(config)
    return ["--speculative-config", text, *render.capture_arguments(capture_sizes, args)]


def served_arguments(profile: Profile, request: ProfileRequest) -> list[str]:
    """What the verdict of a profile serves, for what was asked for; empty for no speculation."""
    decision, args = profile.decision, request.engine.args
    return arm_arguments(request.speculation, render.decided_arm(decision), decision.capture_sizes, args)


def serving_words(profile: Profile, request: ProfileRequest) -> str:
    """The same for a person, quoted for a shell."""
    words = served_arguments(profile, request)
    if not words:
        return "Serve without --speculative-config."
    return f"Serve with:\n  {shlex.join(words)}"
