"""Parses JSON and TOML that somebody else wrote: whatever is wrong with it is a ValueError, and nothing else."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

from outsize.files.plain import read_plain

MOST_JSON_BYTES = 2**30
"""Of a file of our own making; a split of a million scenes has a third of it."""


def json_tree(text: str | bytes) -> Any:
    """Parse JSON. Raises ValueError, also where it is nested too deeply."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def toml_tree(text: str) -> dict[str, Any]:
    """Parse TOML. Raises ValueError, also where it is nested too deeply."""
    try:
        return tomllib.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def read_json_tree(path: Path) -> Any:
    """Parse a plain JSON file. Raises OSError, ValueError."""
    return json_tree(read_plain(path, MOST_JSON_BYTES))
