"""Reads the head and the lists of a pack, which a stranger may have written."""

from __future__ import annotations

import hashlib
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

from outsize.errors import UnsafeFileError, explain
from outsize.files.manifest import Finished
from outsize.files.trees import json_tree
from outsize.files.walk import MAX_NAMES
from outsize.packing.archive import damaged, refuse_name
from outsize.packing.names import DATA_LIST, HEAD, MANIFEST, STARTS, checked_head
from outsize.planning.slurm import Allocation

MOST_HEAD_BYTES = 2**24
MOST_LIST_BYTES = 2**29  # a million files
_SHA = re.compile(r"[0-9a-f]{64}")
Listed = dict[str, Finished]


def read_head(data: bytes, path: Path) -> dict[str, Any]:
    """Return the head, with what unpacking takes from it."""
    try:
        tree = checked_head(json_tree(data), path)
        if problem := _problem(tree):
            raise damaged(path, f"{HEAD} with {problem}")
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise damaged(path, f"{HEAD}: {type(error).__name__}: {str(error)[:100]}") from error
    inner = tree["data"]["inner"]
    for name in (*tree["starts"].values(), *([] if inner == "." else [inner]), tree["job"]):
        refuse_name(name, path)
    return tree


def _problem(tree: dict[str, Any]) -> str | None:
    """Say what is of another kind than unpacking counts on; what a script is written from must be numbers."""
    about, starts, asked = tree["data"], tree["starts"], tree["allocation"]
    if not all(isinstance(tree["lists"][name], str) for name in (MANIFEST, DATA_LIST)):
        return "no checksums of its lists"
    if not isinstance(about["along"], bool) or not all(
        isinstance(about[key], str) for key in ("root", "inner")
    ):
        return "no place of the data"
    if not all(key in STARTS and isinstance(each, str) for key, each in starts.items()):
        return "other weights than a job can begin from"
    if not isinstance(tree["job"], str) or "/" in tree["job"]:
        return "no name of the job"
    numbers = {**asked, "minutes": asked["minutes"] or 0}
    if set(numbers) != {each.name for each in fields(Allocation)} or {
        type(each) for each in numbers.values()
    } != {int}:
        return "no numbers of what to ask for"
    return None


def read_list(name: str, data: bytes, head: dict[str, Any], path: Path) -> Listed:
    """Return the files of a list by name; refuse one that the head does not confirm."""
    if hashlib.sha256(data).hexdigest() != head["lists"][name]:
        raise damaged(path, f"{name} is not what was packed")
    found: Listed = {}
    try:
        for line in data.splitlines():
            tree = json_tree(line)
            each = Finished(tree["name"], tree["size_bytes"], tree["sha256"])
            if type(each.name) is not str or type(each.size_bytes) is not int or each.size_bytes < 0:
                raise TypeError("no name, or no size")
            if not _SHA.fullmatch(each.sha256):
                raise ValueError("no SHA-256")
            refuse_name(each.name, path)
            if each.name in found:
                raise ValueError(f"{each.name} twice")
            found[each.name] = each
    except (ValueError, LookupError, TypeError) as error:
        raise damaged(path, f"{name}: {str(error)[:100]}") from error
    if len(found) > MAX_NAMES:
        what = f"{len(found):,} files"
        raise UnsafeFileError(explain(f"{path} is refused", what, f"at most {MAX_NAMES:,}", "pack less data"))
    return found
