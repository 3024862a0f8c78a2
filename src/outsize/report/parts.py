"""What sections are put together from: titled parts, figures, colours; and the chapter of a task."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from outsize.report.gather import Story
from outsize.report.markup import Markup, Part, tag
from outsize.runs import as_written

Tree = dict[str, Any]
Shown = TypeVar("Shown")


@dataclass(frozen=True)
class Chapter:
    """What a report says of the runs of one task."""

    score: str  # of an epoch, as metrics.jsonl names it
    score_name: str
    show: Callable[[Story], list[Markup | None]]  # the scores of a run
    figures: Callable[[Story], Mapping[str, str]]  # of a run beside others, by the head of their column


def drawn_from(path: Path, made_by: str, show: Callable[..., Shown], *args: Any) -> Shown:
    """Return a section that is drawn from this file."""
    with as_written(path, made_by):
        return show(*args)


def section(title: str, *parts: Part | Iterable[Part], note: str | None = None) -> Markup:
    """Return a titled part of the page."""
    return tag("section", tag("h3", title), tag("p", note, class_="note") if note else None, *parts)


def cards_of(figures: Sequence[tuple[str, str]]) -> Markup:
    """Return the few figures that matter, each with its name, as cards."""
    if not figures:
        return tag("p", "Nothing was trained or scored in this run yet.", class_="note")
    cards = [tag("div", tag("b", value), tag("span", name)) for value, name in figures]
    return tag("div", cards, class_="cards")


def picture_of(path: Path, alt: str) -> Markup | None:
    """Return a picture as part of the page; nothing where there is none."""
    if not path.is_file():
        return None
    data = base64.b64encode(path.read_bytes()).decode("ascii")
    source = f"data:image/{path.suffix[1:].lower()};base64,{data}"
    return tag("img", src=source, alt=alt, style="max-width:100%;height:auto")


def figure(value: Part, digits: int = 4) -> str:
    """Write a score; what is unknown is a dash."""
    return "–" if value is None else f"{float(value):.{digits}f}"


def percent(value: Part) -> str:
    """Write a share."""
    return "–" if value is None else f"{100 * float(value):.1f} %"


def first_split(story: Story) -> tuple[str, Tree] | None:
    """Return the split that says most: what was held back, if it was scored."""
    for name in ("test", "val", "train"):
        if name in story.scores:
            return name, story.scores[name]
    return None


def swatch(colour: tuple[int, int, int] | None) -> Markup | None:
    """Return a small field of a colour."""
    if colour is None:
        return None
    red, green, blue = (int(part) for part in colour)
    return tag("span", class_="swatch", style=f"background:rgb({red},{green},{blue})")
