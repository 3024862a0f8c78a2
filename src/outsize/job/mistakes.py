"""Says in one line, in words of our own, what is wrong with a value of a job, and what would be right."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

from outsize.errors import explain

_FOUND_CHARS = 80

# what a value had to be, by pydantic's name for what is wrong with it
_NEEDED = {
    "finite_number": "a number, neither infinite nor nan",
    "greater_than": "more than {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than": "less than {lt}",
    "less_than_equal": "at most {le}",
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "string_type": "text",
    "literal_error": "{expected}",
    "tuple_type": "a list",
    "dict_type": "a table of keys and values",
    "model_type": "a section of keys and values",
    "too_short": "at least {min_length} of them",
    "value_error": "{error}",  # of a check of our own
}


def mistake(
    error: ValidationError,
    section: type[BaseModel],
    name: str,
    *,
    place: tuple[str, ...] = (),
    overridden: Collection[str] = (),
) -> str:
    """Explain the first mistake in a section that is named `name` and stands at `place` of a job.

    Keys that are `overridden` come from the command line, and a mistake in them is none of the file.
    """
    first = _first(error)
    at = ".".join(str(part) for part in (*place, *first["loc"])) or "job"
    if first["type"] == "missing":
        return explain(f"key {at!r} is missing in {name}", "nothing", "a value", "add it")
    if first["type"] == "extra_forbidden":
        if any(_is_within(each, at) or _is_within(at, each) for each in overridden):
            name = "--set"
        known = _known_keys(section, first["loc"][:-1])
        word = first["loc"][-1]
        remedy = _elsewhere(str(word), section) or _nearest(word, known) or "remove it"
        return explain(f"unknown key {at!r} in {name}", _short(first), f"one of {', '.join(known)}", remedy)
    if any(_is_within(at, each) for each in overridden):
        name = "--set"
    own = first.get("ctx", {}).get("error")
    remedy = getattr(own, "remedy", None) or _nearest(first["input"], _choices(first)) or "correct it"
    return explain(f"bad value for {at!r} in {name}", _short(first), _needed(first), remedy)


def in_short(error: ValidationError) -> str:
    """Say where the first mistake is, what was found there and what was needed, for the beginning of a message."""
    first = error.errors()[0]
    at = ".".join(map(str, first["loc"]))
    if first["type"] in ("extra_forbidden", "missing"):
        return f"{at} {'missing' if first['type'] == 'missing' else 'unknown'}"
    return f"{at} = {_short(first)} instead of {_needed(first)}"


def _first(error: ValidationError) -> Mapping[str, Any]:
    """Return the first mistake; of a key that is missing because it was misspelt, the misspelt one."""
    first, *others = error.errors()
    if first["type"] != "missing":
        return first
    *section, key = first["loc"]
    for other in others:
        *beside, word = other["loc"]
        if other["type"] == "extra_forbidden" and beside == section and _nearest(word, [str(key)]):
            return other
    return first


def _needed(found: Mapping[str, Any]) -> str:
    about = {
        key: f"{each:g}" if isinstance(each, float) else each for key, each in found.get("ctx", {}).items()
    }
    words = _NEEDED.get(found["type"])
    return str(found["msg"]) if words is None else words.format(**about)


def _is_within(place: str, section: str) -> bool:
    return f"{place}.".startswith(f"{section}.")


def _elsewhere(key: str, section: type[BaseModel]) -> str | None:
    """Say in which sections there is a key of this very name."""
    places = [place for place in _places(section) if place.rpartition(".")[2] == key]
    return f"did you mean {' or '.join(map(repr, places))}?" if places else None


def _places(section: type[BaseModel], before: str = "") -> Iterator[str]:
    for name, field in section.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from _places(field.annotation, f"{before}{name}.")
        else:
            yield f"{before}{name}"


def _short(found: Mapping[str, Any]) -> str:
    own = getattr(found.get("ctx", {}).get("error"), "found", None)
    if own is not None:
        return str(own)
    return " ".join(repr(found["input"]).split())[:_FOUND_CHARS]


def _choices(found: Mapping[str, Any]) -> list[str]:
    """Return the texts that a value is chosen from, where it is."""
    if found["type"] != "literal_error":
        return []
    return str(found["ctx"]["expected"]).replace(" or ", ", ").replace("'", "").split(", ")


def _nearest(word: object, known: list[str]) -> str | None:
    near = difflib.get_close_matches(word, known, n=1, cutoff=0.5) if isinstance(word, str) else []
    return f"did you mean {near[0]!r}?" if near else None


def _known_keys(section: type[BaseModel], location: tuple[int | str, ...]) -> list[str]:
    """Walk the sections to the one in which an unknown key was met."""
    for part in location:
        if isinstance(part, int):
            continue
        annotation = section.model_fields[part].annotation
        options = [annotation, *getattr(annotation, "__args__", ())]
        section = next(each for each in options if isinstance(each, type) and issubclass(each, BaseModel))
    return sorted(section.model_fields)
