"""Reads a published table."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outsize.errors import JobError, explain

_FOLDER = Path(__file__).parent
NAMES: tuple[str, ...] = tuple(sorted(path.stem for path in _FOLDER.glob("*.toml")))


@dataclass(frozen=True)
class Publication:
    """A published table: where it is from, what is common to all rows, and its rows."""

    name: str
    title: str
    source: str
    facts: Mapping[str, Any]  # what is common to all rows; further tables by their names
    rows: tuple[Mapping[str, Any], ...]


def published(name: str) -> Publication:
    """Return a published table by name."""
    if name not in NAMES:
        need = f"one of {', '.join(NAMES)}"
        raise JobError(explain("unknown published table", repr(name), need, "correct the name"))
    tree = tomllib.loads((_FOLDER / f"{name}.toml").read_text(encoding="utf-8"))
    title, source, rows = tree.pop("title"), tree.pop("source"), tree.pop("rows")
    return Publication(name, title, source, tree, tuple(rows))
