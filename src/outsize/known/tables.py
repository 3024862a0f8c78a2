"""Reads the tables of published datasets, and fills in the keys of a job that follow from them."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from outsize.errors import JobError, explain
from outsize.known.leads import lead_classes

BACKGROUND = "Background"  # what a class map calls categories that are no class of it
_GOLDEN = 0.618034  # hues that far apart keep apart, however many there are


@cache
def table(name: str) -> dict[str, Any]:
    """Return the table of a dataset: cityscapes, camvid, kitti or taco."""
    return tomllib.loads((Path(__file__).parent / f"{name}.toml").read_text(encoding="utf-8"))


def filled_in(data: object) -> object:
    """Return the data section of a job with the keys that its dataset decides; what the job says stays."""
    if not isinstance(data, Mapping):  # no section, or one that was checked before
        return data
    kind, keys = data.get("format"), dict(data)
    if kind == "cityscapes":
        known = table(kind)
        keys = {"labels": "gtFine", "classes": known["classes"], **keys}
        ids = {*range(known["max_label_id"] + 1), 255}
        return {"ignore_value": sorted(ids - _values(keys["classes"]), reverse=True), **keys}
    if kind == "camvid":
        known = table(kind)
        classes = [{key: each[key] for key in ("name", "value", "colour")} for each in known["classes"]]
        return {"labels": "", "classes": classes, "ignore_value": [known["ignore_value"], 255], **keys}
    if kind == "coco":
        keys = {"labels": "annotations.json", **keys}
        if "class_map" in data:
            classes = _classes(sorted({*class_map(str(data["class_map"])).values()} - {BACKGROUND}))
            if data.get("objects") or data.get("boxes"):  # what is around objects is none of them
                return {"classes": classes[1:], **keys}
            return {"classes": classes, "outside": BACKGROUND.lower(), **keys}
    if kind == "kitti":
        known = table(kind)
        keys = {"labels": "", "classes": known["classes"], **keys}
        return {**_around(known, keys), **keys}
    if kind in ("masks", "voc", "yolo", "classes", "idx", "radar"):
        digits = [{"name": str(value), "value": value} for value in range(10)]
        own = {"classes": digits, "bands": ["grey"]} if kind == "idx" else {}
        # what a forecast answers with is a number for each lead
        leads = {"classes": lead_classes(keys.get("frames"))} if kind == "radar" else {}
        return {"labels": "", **own, **keys, **leads}
    return keys


def class_map(name: str) -> dict[str, str]:
    """Return, for each category of a published class map in small letters, the name of its class."""
    known = table("taco")
    if name not in known["maps"]:
        near = difflib.get_close_matches(name, known["maps"], n=1, cutoff=0.0)
        need, remedy = f"one of {', '.join(known['maps'])}", f"did you mean {near[0]!r}?"
        raise JobError(explain("unknown class map", repr(name), need, remedy))
    chosen, categories = known["maps"][name], known["categories"]
    classes = {
        categories[number]: class_name
        for class_name, numbers in chosen.get("classes", {}).items()
        for number in numbers
    }
    of_name = {
        each: each if chosen.get("each") else classes.get(each, chosen.get("rest")) for each in categories
    }
    of_name |= {also: of_name[each] for also, each in known["also"].items()}
    return {each.lower(): found for each, found in of_name.items()}


def _around(known: Mapping[str, Any], keys: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return KITTI's types that are no class of the job: neighbours of its classes are neutral, others left out."""
    given = keys["classes"] if isinstance(keys["classes"], list) else []
    named = {each.get(key) for each in given if isinstance(each, dict) for key in ("name", "attribute")}
    joined = keys.get("joined")
    named |= set(joined) if isinstance(joined, Mapping) else set()
    neutral = [each for each, class_name in known["neighbours"].items() if class_name in named]
    rest = [each for each in known["types"] if each not in {*named, *neutral}]
    return {"neutral": [each for each in neutral if each not in named], "left_out": rest}


def _values(classes: object) -> set[int]:
    """Return the values of classes as a job gives them; what is wrong with those is said where they are checked."""
    given = classes if isinstance(classes, list) else []
    return {each["value"] for each in given if isinstance(each, dict) and isinstance(each.get("value"), int)}


def _classes(names: list[str]) -> list[dict[str, Any]]:
    """Number classes after the background, each with its own colour."""
    import colorsys

    classes: list[dict[str, Any]] = [{"name": BACKGROUND.lower(), "value": 0, "colour": (0, 0, 0)}]
    for number, name in enumerate(names, start=1):
        shade = colorsys.hsv_to_rgb(number * _GOLDEN % 1, 0.75, 0.95)
        colour = tuple(round(255 * part) for part in shade)
        classes.append({"name": name, "value": number, "colour": colour})
    return classes
