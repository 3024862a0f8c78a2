"""The kinds of values that a job is made of, and what all its sections share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    field_validator,
)

from outsize.errors import JobError
from outsize.units import parse_bytes, parse_size

LOSS_NAMES = ("cross_entropy", "dice", "focal", "gscnn", "rain", "plain_rain")
_LEAST_PLAIN_BYTES = 2**20  # a number without a unit below this is meant in another unit
_MOST_GIB = 1024  # up to which such a number is taken for GiB


class MistakenValue(ValueError):
    """A value that is wrong in a way for which there are better words than the value itself and "correct it"."""

    def __init__(self, needed: str, *, found: str | None = None, remedy: str | None = None) -> None:
        super().__init__(needed)
        self.found, self.remedy = found, remedy


class Section(BaseModel):
    """What all sections share: fixed once read, no key goes unnoticed, and every number has an end."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _true_is_no_number(cls, value: object, about: ValidationInfo) -> object:
        """Refuse true and false where pydantic would take them for 1 and 0."""
        annotation = cls.model_fields[about.field_name or ""].annotation
        kinds = [each for each in get_args(annotation) or (annotation,) if each is not type(None)]
        if isinstance(value, bool) and kinds in ([int], [float]):
            raise ValueError("a whole number" if kinds == [int] else "a number")
        return value


def parse_colour(value: object) -> tuple[int, int, int]:
    """Read "#rrggbb" or three numbers."""
    if isinstance(value, str):
        try:
            red, green, blue = bytes.fromhex(value.removeprefix("#"))
        except ValueError as error:
            raise ValueError('six hex digits or three numbers, e.g. "#1f78b4"') from error
        return red, green, blue
    numbers = tuple(value) if isinstance(value, Sequence) else ()
    if len(numbers) != 3 or any(type(number) is not int or not 0 <= number <= 255 for number in numbers):
        raise ValueError('three numbers from 0 to 255, or e.g. "#1f78b4"')
    return numbers


def _as_tuple(value: object) -> object:
    return (value,) if isinstance(value, str | int) else value


def _as_label_values(value: object) -> tuple[int, ...]:
    values = tuple(value) if isinstance(value, list | tuple) else (value,)
    if not values or any(type(each) is not int or not 0 <= each <= 255 for each in values):
        raise ValueError("a whole number from 0 to 255, or a list of such")
    return values


def _as_bytes(value: object) -> int:
    needed = 'a number of bytes, or e.g. "16GiB"'
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise ValueError(needed)
    try:
        size = parse_bytes(value)
    except JobError as error:
        raise ValueError(needed) from error
    number = str(value).strip()
    if not number[-1:].isalpha() and 0 < size < _LEAST_PLAIN_BYTES:
        unit = "GiB" if size <= _MOST_GIB else "MiB"
        raise MistakenValue(
            "a size with its unit", found=f"{number} bytes", remedy=f"did you mean {number}{unit}?"
        )
    return size


def _checked_name(value: str) -> str:
    try:
        value.format(stem="stem", name="stem.tif")
    except (KeyError, IndexError, ValueError) as error:
        raise ValueError("a file name in which {stem} or {name} stands for the image's") from error
    if value == "{name}":
        raise ValueError("another file than the image itself, e.g. {stem}_labels.tif")
    return value


def _checked_loss(value: str) -> str:
    names = value.split("+")
    unknown = [name for name in names if name not in LOSS_NAMES]
    if unknown or len(set(names)) != len(names) or len(names) > 2:
        raise ValueError(f"one of {', '.join(LOSS_NAMES)}, or two of them joined by +")
    return value


Bytes = Annotated[int, BeforeValidator(_as_bytes), Field(gt=0)]
WindowSize = Annotated[int | tuple[int, int], BeforeValidator(parse_size)]
LabelsName = Annotated[str, AfterValidator(_checked_name)]
LossName = Annotated[str, AfterValidator(_checked_loss)]
Colour = Annotated[tuple[int, int, int], BeforeValidator(parse_colour)]
Strings = Annotated[tuple[str, ...], BeforeValidator(_as_tuple)]
LabelValues = Annotated[tuple[int, ...], BeforeValidator(_as_label_values)]
