"""Acceptance as a draft checkpoint carries it: ``speculation_profile.json``. Pure.

Written by NVIDIA's Model Optimizer (schema 1.0) beside the weights. Both kinds of rates may stand there, by draft
position: marginal ones (the first i drafts are all accepted) add up to AL(K) = 1 + the sum of the first K, conditional
ones (draft i is accepted where those before it are) multiply up to marginal ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, pairwise
from operator import mul
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, Strict, model_validator

_ROUNDED = 1e-3
"""Rates are written with six digits at least four of which are sure, whatever they were computed from."""
_CONSISTENT = 0.02
"""The writer's own tolerance between the mean length and 1 + the sum of the marginal rates."""


def between(least: float, most: float, words: str) -> Callable[[float], float]:
    """A check of a number, for a validator. NaN is outside."""

    def check(value: float) -> float:
        if not least <= value <= most:
            raise ValueError(f"{value:g} {words}")
        return value

    return check


Number = Annotated[float, Strict()]
Rate = Annotated[Number, AfterValidator(between(0, 1, "is outside 0 to 1"))]
Length = Annotated[Number, AfterValidator(between(1, 1e3, "is no length; it is 1 + accepted drafts"))]
Steps = Annotated[int, Strict(), Field(ge=1, le=1000)]


class SpeculationProfile(BaseModel):
    """What is needed of it; other fields are passed over."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    measured: bool = True
    num_speculative_tokens: Steps | None = None
    """K that it was measured at."""
    verification_method: str | None = "longest_prefix"
    conditional_accept_rates: tuple[Rate, ...] | None = None
    marginal_accept_rates: tuple[Rate, ...] | None = None
    mean_accept_length: Length | None = None
    """Per step, at ``num_speculative_tokens``."""
    accept_length_model: str | None = None
    """``chain_analytic``: the rates hold at every K. ``measured_per_k``: at the measured one alone."""
    accept_length_by_k: dict[int, Length] | None = None

    @model_validator(mode="after")
    def _agrees(self) -> SpeculationProfile:
        if not self.measured:
            raise ValueError("the drafter was not measured (measured: false): its rates mean nothing")
        for k, length in self._measured_lengths.items():
            if length > k + 1:
                raise ValueError(f"accept_length_by_k: {length:g} at K = {k} is outside 1 to {k + 1}")
        given, product = self.marginal_accept_rates, self._multiplied()
        for index, (before, after) in enumerate(pairwise(given or ())):
            if after > before + _ROUNDED:
                raise ValueError(
                    f"marginal_accept_rates[{index + 1}]: {after:g} is above the one before: conditional rates belong "
                    "into conditional_accept_rates"
                )
        for index, (rate, multiplied) in enumerate(zip(given or (), product, strict=False)):
            if abs(rate - multiplied) > _ROUNDED:
                raise ValueError(
                    f"marginal_accept_rates[{index}]: {rate:g}, but conditional_accept_rates multiply up to "
                    f"{multiplied:.4g}: leave the wrong ones out"
                )
        return self

    @property
    def rates(self) -> tuple[float, ...]:
        """Marginal rates by draft position; empty where there are none."""
        return self.marginal_accept_rates or self._multiplied()

    def lengths(self, ks: Sequence[int]) -> dict[int, float]:
        """K -> AL: as measured where it was at each of ``ks``, else from the rates, at every K that they reach.

        Raises ValueError where they do not reach the largest.
        """
        if set(ks) <= self._measured_lengths.keys():
            return {k: self._measured_lengths[k] for k in ks}
        if len(self.rates) < max(ks):
            raise ValueError(
                f"its rates are of {len(self.rates)} draft positions, its lengths of K = "
                f"{', '.join(map(str, sorted(self._measured_lengths)))}, but draftTokens goes to {max(ks)}"
            )
        return dict(enumerate(accumulate(self.rates, initial=1.0)))

    def warnings(self, ks: Sequence[int]) -> Iterator[str]:
        """What makes its lengths at these K doubtful."""
        if self.verification_method not in (None, "longest_prefix"):
            yield f"acceptance is that of {self.verification_method} verification: vLLM takes the longest prefix"
        if set(ks) <= self._measured_lengths.keys():
            return
        if self.accept_length_model == "measured_per_k":
            yield (
                f"the drafter plans each K anew: its rates are those of K = {self.num_speculative_tokens} "
                "and say little of other K; accept_length_by_k with every K of the grid would"
            )
        measured = 0 if self.num_speculative_tokens is None else self.num_speculative_tokens
        implied = 1 + sum(self.rates[:measured])
        if measured and self.mean_accept_length and abs(implied - self.mean_accept_length) > _CONSISTENT:
            yield (
                f"mean_accept_length {self.mean_accept_length:g} is not 1 + the sum of the rates, {implied:.4g}: "
                "the rates leave something out"
            )

    @property
    def _measured_lengths(self) -> dict[int, float]:
        mean, k = self.mean_accept_length, self.num_speculative_tokens
        own = {k: mean} if k is not None and mean is not None else {}
        return {0: 1.0, **own, **(self.accept_length_by_k or {})}

    def _multiplied(self) -> tuple[float, ...]:
        return tuple(accumulate(self.conditional_accept_rates or (), mul))
