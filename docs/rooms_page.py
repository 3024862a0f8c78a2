"""Draws the rooms of the source in DESIGN.md from their imports; a test keeps the drawings true.

python docs/rooms_page.py

A drawing follows a line `<!-- drawing: ROOM -->`, and this script renews all of them. What is higher imports what is
lower, never the other way round. An import that follows from another one is left out; imports in a cycle are marked.
"""

from __future__ import annotations

import ast
import functools
import re
import textwrap
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[1]
_SOURCE, PAGE = _ROOT / "src" / "outsize", _ROOT / "DESIGN.md"
_PLACE = re.compile(r"(<!-- drawing: ([\w/]+) -->\n```\n).*?(```\n)", re.DOTALL)
_WIDTH = 118
Graph = dict[str, set[str]]


def page() -> str:
    """Return DESIGN.md with every drawing made again."""
    text = PAGE.read_text(encoding="utf-8")
    return _PLACE.sub(lambda place: place[1] + drawing(place[2]) + place[3], text)


def drawn() -> set[str]:
    """Return the rooms of which DESIGN.md has a drawing."""
    return {place[2] for place in _PLACE.finditer(PAGE.read_text(encoding="utf-8"))}


def large_rooms(most: int = 8) -> set[str]:
    """Return the rooms that need a drawing: those with sub-rooms, or with many files."""
    rooms = {path.parent for path in _SOURCE.glob("*/__init__.py")}
    many = {room for room in rooms if len(list(room.glob("*.py"))) - 1 > most}
    return {room.name for room in many | {path.parents[1] for path in _SOURCE.glob("*/*/__init__.py")}}


def drawing(room: str) -> str:
    """Return one room as text: each file and sub-room with what it stands on, what is in it, and its duty."""
    folder = _SOURCE if room == "outsize" else _SOURCE / room
    graph = _imports(folder)
    reach = {name: _reached(name, graph) for name in graph}
    heights = {name: _height(name, graph, reach) for name in graph}
    order = sorted(graph, key=lambda name: (-heights[name], name))
    labels = {name: name + ("/" if (folder / name).is_dir() else ".py") for name in graph}
    stands_on = {name: _needed(name, graph, reach) for name in graph}
    column = max(map(len, labels.values())) + 2
    lines = [f"{room}/"]
    for number, name in enumerate(order):
        if number and heights[name] < heights[order[number - 1]]:
            lines.append("  " + "-" * column)
        inside = _inside(folder / name) if room != "outsize" else ""
        arrows = f"-> {' '.join(stands_on[name])}" if stands_on[name] else ""
        text = f"{arrows}  ({inside})".strip() if inside else arrows
        first = f"  {labels[name]:{column}}"
        indent = " " * len(first)
        lines += _wrapped(text, first, indent) or [first.rstrip()]
        lines += _wrapped(_duty(folder / name), indent, indent) if inside else []
    return "\n".join(lines) + "\n"


def _imports(folder: Path) -> Graph:
    """Return which files and sub-rooms of a folder import which others of it, wherever in a file they do."""
    inside = {
        path.stem: [path] if path.is_file() else sorted(path.rglob("*.py"))
        for path in folder.iterdir()
        if (path.suffix == ".py" and not path.stem.startswith("__")) or (path / "__init__.py").is_file()
    }
    depth = len(folder.relative_to(_SOURCE).parts)
    here = folder.relative_to(_SOURCE).parts
    graph: Graph = {name: set() for name in inside}
    for name, paths in inside.items():
        for imported in {each for path in paths for each in _imported(path)}:
            other = imported[depth] if imported[:depth] == here and len(imported) > depth else ""
            if other in inside and other != name:
                graph[name].add(other)
    return graph


@functools.cache
def _imported(path: Path) -> frozenset[tuple[str, ...]]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return frozenset(tuple(name.split(".")[1:]) for name in found if name.startswith("outsize."))


def _reached(name: str, graph: Graph) -> set[str]:
    found, waiting = set[str](), [name]
    while waiting:
        new = graph[waiting.pop()] - found
        found |= new
        waiting += new
    return found


def _height(name: str, graph: Graph, reach: Graph) -> int:
    """Return how many lie below one another under this; what imports each other has one height."""
    below = [each for each in reach[name] if name not in reach[each]]
    return max((_height(each, graph, reach) + 1 for each in below), default=0)


def _needed(name: str, graph: Graph, reach: Graph) -> list[str]:
    """Return what is imported directly, without what another import brings along; a cycle is marked."""
    direct = graph[name]
    via = {each: direct - {each} for each in direct}
    kept = [
        each
        for each in sorted(direct)
        if name in reach[each]
        or not any(each in reach[other] and other not in reach[each] for other in via[each])
    ]
    return [f"{each} (cycle)" if name in reach[each] else each for each in kept]


def _inside(path: Path) -> str:
    if not path.is_dir():
        return ""
    files = [each.stem for each in path.glob("*.py") if not each.stem.startswith("__")]
    rooms = [f"{each.parent.name}/" for each in path.glob("*/__init__.py")]
    return " ".join(sorted(files + rooms))


def _duty(folder: Path) -> str:
    text = ast.get_docstring(ast.parse((folder / "__init__.py").read_text(encoding="utf-8"))) or ""
    return text.split("\n\n")[0].replace("\n", " ")


def _wrapped(text: str, first: str, indent: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent=first, subsequent_indent=indent)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
