"""Section about places: pictures of the best, the ordinary and the worst, and what their order is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from outsize.report.gather import Story
from outsize.report.markup import Markup, tag
from outsize.report.parts import figure, percent, section, swatch
from outsize.tasks.segment.strips import embed_strip
from outsize.tasks.segment.wrong import wrong_colour

Tree = dict[str, Any]
_UNLABELLED = (255, 255, 255)
_TITLES = {"best": "best places", "median": "ordinary places (the median)", "worst": "worst places"}


def show_places(story: Story, split: str, scores: Tree) -> Markup | None:
    """Return pictures of the best, the median and the worst places."""
    places = scores.get("places", ())
    wrong = wrong_colour(tuple(story.colours.values()))
    parts: list[Markup] = []
    for rank, title in _TITLES.items():
        shown = []
        for place in (each for each in places if each["rank"] == rank):
            where = f"{place['scene']}, rows {place['row']}–{place['row'] + place['height']}, "
            where += f"columns {place['col']}–{place['col'] + place['width']}"
            strip = embed_strip(_in_run(story.run.path, place["picture"]), where, wrong)
            if strip is None:
                continue
            shown.append(
                tag("div", strip, tag("p", f"{_figures(place)} · {where}", class_="note"), class_="place")
            )
        if shown:
            parts += [tag("h4", title.capitalize()), *shown]
    if not parts:
        return None
    entries = [tag("li", swatch(colour), name) for name, colour in story.colours.items()]
    entries += [
        tag("li", swatch(wrong), "wrong (in the panel error)"),
        tag("li", swatch(_UNLABELLED), "unlabelled (in the panel truth)"),
    ]
    note = _order(all("wrong" in each for each in places))
    return section(f"Places: {split}", tag("ul", entries, class_="legend"), parts, note=note)


def _in_run(run: Path, name: str) -> Path:
    """Return a picture of the run; of another folder none is shown, whatever the scores say."""
    path = (run / name).resolve()
    if not path.is_relative_to(run.resolve()):
        raise ValueError(f"a picture at {path}")
    return path


def _figures(place: Tree) -> str:
    """Say how good a place is, the figure first that it was chosen by."""
    wrong, iou = f"{percent(1 - place['accuracy'])} wrong", f"mean IoU {figure(place['mean_iou'], 3)}"
    return f"{wrong}, {iou}" if "wrong" in place else f"{iou}, {wrong}"


def _order(by_wrong: bool) -> str:
    if by_wrong:
        return "Ordered by the share of wrong pixels; the best are of those with two classes or more."
    # scores that an older version wrote
    return "Ordered by mean IoU, as chosen by an older outsize; evaluate again to order by the share of wrong pixels."
