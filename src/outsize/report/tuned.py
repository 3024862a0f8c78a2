"""What a tuning found, as value, table and pictures: which key mattered, and which of its values did well."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from outsize.errors import RunError, explain
from outsize.report.curves import ACCENT, HEIGHT, WIDTH, Axis, frame, number, place, svg, ticks
from outsize.report.markup import Markup, tag
from outsize.runs import as_written, read_json
from outsize.units import format_seconds

VERSION = 1
_MOST_ROWS = 20  # of a table in a terminal
_BEST = "#d9822b"


@dataclass(frozen=True)
class Tuned:
    """All trials of a tuning, and the share of each key in the differences of their scores."""

    score: str  # as metrics.jsonl names it
    score_name: str
    keys: Mapping[str, bool | None]  # that vary: whether by their logarithm; None for choices
    rows: Sequence[Mapping[str, Any]]  # number, state, score, values, epochs, seconds, why, run
    importance: Mapping[str, float]  # empty where too few trials tell

    @property
    def done(self) -> list[Mapping[str, Any]]:
        """Trials that were trained to their end, the best first."""
        found = [each for each in self.rows if each["state"] == "done"]
        return sorted(found, key=lambda each: -float(each["score"]))

    @property
    def best(self) -> Mapping[str, Any] | None:
        """The trial with the best score."""
        return next(iter(self.done), None)

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {"schema": VERSION, **asdict(self)}


def read_tuned(path: Path) -> Tuned:
    """Read trials.json; a newer or broken one is refused in one line."""
    tree = read_json(path, "tune")
    with as_written(path, "tune"):
        version = tree.pop("schema")
        if not isinstance(version, int) or version > VERSION:
            need = f"version {VERSION} or older"
            remedy = "read it with the outsize that wrote it, or a newer one"
            raise RunError(explain(f"{path} has a newer schema of trials", repr(version), need, remedy))
        return Tuned(**tree)


def trials_table(tuned: Tuned) -> tuple[Sequence[str], list[list[str]], list[str]]:
    """Return heads, rows and remarks: the best trials first, then those that came to nothing."""
    heads = ["trial", tuned.score_name, *tuned.keys, "epochs", "time", "outcome"]
    others = sorted(
        (each for each in tuned.rows if each["state"] != "done"),
        key=lambda each: -(each["score"] or -math.inf),
    )
    ordered = [*tuned.done, *others]
    rows = [
        [
            str(each["number"]),
            "–" if each["score"] is None else f"{each['score']:.4f}",
            *(value_text(each["values"].get(key)) for key in tuned.keys),
            str(each["epochs"]),
            "–" if each["seconds"] is None else format_seconds(each["seconds"]),
            "does not fit" if each["why"].startswith("does not fit") else each["state"],
        ]
        for each in ordered
    ]
    hidden = len(rows) - _MOST_ROWS
    remarks = [f"and {hidden} more in trials.json"] if hidden > 0 else []
    remarks += [
        f"trial {each['number']} {outcome_text(each)}" for each in ordered[:_MOST_ROWS] if each["why"]
    ]
    return heads, rows[:_MOST_ROWS], remarks


def outcome_text(row: Mapping[str, Any]) -> str:
    """Say how a trial ended, and why where it was not trained to its end."""
    if not row["why"]:
        return str(row["state"])
    return str(row["why"]) if row["why"].startswith("does not fit") else f"{row['state']}: {row['why']}"


def value_text(value: Any) -> str:
    """Write a value of a job short."""
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.3g}"
    return value if isinstance(value, str) else json.dumps(value)


def draw_importance(importance: Mapping[str, float]) -> Markup:
    """Return a bar for each key, the one that mattered most on top."""
    ordered = sorted(importance.items(), key=lambda each: -each[1])
    row, left, width = 30.0, 190.0, WIDTH - 190.0 - 60
    parts = []
    for index, (key, share) in enumerate(ordered):
        y = index * row
        parts.append(tag("text", key, x=left - 8, y=y + 19, text_anchor="end"))
        parts.append(
            tag("rect", x=left, y=y + 4, width=round(max(share * width, 1), 1), height=22, fill=ACCENT)
        )
        parts.append(tag("text", f"{share:.0%}", x=round(left + share * width + 8, 1), y=y + 19))
    box = f"0 0 {WIDTH:g} {len(ordered) * row + 6:g}"
    return tag("figure", tag("svg", parts, viewBox=box, role="img", aria_label="what mattered"))


def draw_slice(tuned: Tuned, key: str) -> Markup:
    """Return the score over the values of a key, a point for each trial; the best one is filled with another colour."""
    shown = [each for each in tuned.done if key in each["values"]]
    by_log = tuned.keys[key]
    values = [each["values"][key] for each in shown]
    ys = ticks(Axis(tuned.score_name), [each["score"] for each in shown])
    if by_log is None:
        names = sorted({value_text(each) for each in values})
        places = [0.5 + names.index(value_text(each)) for each in values]
        xs, labels = [0.0, float(len(names))], {0.5 + index: name for index, name in enumerate(names)}
    elif by_log:
        places = [math.log10(each) for each in values]
        low, high = math.floor(min(places)), math.ceil(max(places))
        xs = [float(each) for each in range(low, max(high, low + 1) + 1)]
        labels = {each: number(10**each) for each in xs}
    else:
        places = [float(each) for each in values]
        xs = ticks(Axis(key), places)
        labels = {each: number(each) for each in xs}
    parts = frame(Axis(key), Axis(tuned.score_name), [], ys)
    for at, name in labels.items():
        x, _ = place((at, ys[0]), xs, ys)
        parts.append(tag("text", name, x=x, y=HEIGHT - 28, text_anchor="middle"))
    for at, each in reversed(list(zip(places, shown, strict=True))):
        x, y = place((at, each["score"]), xs, ys)
        is_best = each is shown[0]
        words = tag(
            "title", f"trial {each['number']}: {value_text(each['values'][key])}, {each['score']:.4f}"
        )
        shape = {"r": 6 if is_best else 4.5, "fill": _BEST if is_best else ACCENT, "opacity": 0.85}
        parts.append(tag("g", words, tag("circle", cx=x, cy=y, **shape)))
    return tag("figure", svg(parts, f"{tuned.score_name} over {key}"))
