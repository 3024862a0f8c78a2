"""The section of a job on what a tuning may vary: keys of the job, each with a range or with choices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, ValidationError, model_validator

from outsize.job.fields import MistakenValue, Section

_ENDS = {"low", "high"}
_MAY_VARY = ("train.", "model.")


class Range(Section):
    """Numbers from low to high, both among them; whole ones where low and high are."""

    low: int | float
    high: int | float
    log: bool = Field(False, description="spread by their logarithm")
    step: int | float | None = Field(None, gt=0, description="from one to the next")

    @model_validator(mode="after")
    def _is_one(self) -> Range:
        if self.high <= self.low:
            raise ValueError("low must be below high")
        if self.log and (self.low <= 0 or self.step is not None):
            raise ValueError("a range with log begins above 0 and has no step")
        return self

    @property
    def is_whole(self) -> bool:
        """Whether it has whole numbers only."""
        return all(isinstance(each, int) for each in (self.low, self.high, self.step or 1))


def _by_key(tree: object) -> object:
    """Name keys by their sections: `train.lr` in [tune] and `lr` in [tune.train] are the same."""
    return {key: _varied(key, value) for key, value in _leaves(tree)} if isinstance(tree, Mapping) else tree


def _varied(key: str, value: object) -> Range | Choices:
    """Read one range or one list of choices."""
    if not key.startswith(_MAY_VARY) and key != "model":
        remedy = "a tuning may vary keys of [train] and [model]"
        raise MistakenValue("a key such as train.lr or model.width", found=repr(key), remedy=remedy)
    if isinstance(value, list | tuple) and len(value) > 1:
        return tuple(value)
    try:
        return Range.model_validate(value)
    except ValidationError as error:
        needed = "a range such as {low = 1e-4, high = 1e-2, log = true}, or a list of two choices or more"
        first = error.errors()[0]
        why = ": ".join([*map(str, first["loc"][:1]), first["msg"].removeprefix("Value error, ")])
        remedy = "correct it" if not isinstance(value, Mapping) else f"correct {why}"
        raise MistakenValue(needed, found=f"{key} = {value!r}", remedy=remedy) from None


def _leaves(tree: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        if isinstance(value, Mapping) and not _ENDS & value.keys():
            yield from _leaves(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", value


Choices = tuple[Any, ...]
TuneSection = Annotated[dict[str, Any], BeforeValidator(_by_key)]  # Range or Choices by key
