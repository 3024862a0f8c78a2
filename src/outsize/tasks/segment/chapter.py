"""What a report says of class maps: figures, classes, confusion, reliability, scenes, another run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from outsize.report.curves import draw_reliability
from outsize.report.gather import Story
from outsize.report.markup import Markup, Part, join, pairs, table, tag
from outsize.report.parts import Chapter, cards_of, drawn_from, figure, first_split, percent, section, swatch
from outsize.tasks.segment.info import INFO
from outsize.tasks.segment.places_shown import show_places

Tree = dict[str, Any]
_HEADS = {"iou": "IoU", "accuracy": "accuracy", "f1": "F1", "bf": "BF"}
_ACCURACY = (
    "Accuracy: of a class, the share of its true pixels that the map has as that class; of all pixels, the share that "
    "is right (pixel accuracy)."
)
_MANY = 12  # rows that are shown at once


def show_summary(story: Story) -> Markup:
    """Return the few figures that matter, as cards."""
    cards: list[tuple[str, str]] = []
    found = first_split(story)
    if found:
        split, scores = found
        cards += [
            (figure(scores["mean_iou"]), f"mean IoU, {split}"),
            (percent(scores["pixel_accuracy"]), "pixel accuracy"),
            (figure(scores["mean_f1"]), "mean F1"),
        ]
        trust = scores.get("reliability")
        if trust:
            cards.append((figure(trust["expected_calibration_error"]), "calibration error"))
    if story.epochs:
        best = max(each["mean_iou"] for each in story.epochs)
        cards.append((figure(best), "best validation mean IoU"))
    if story.verified:
        passed = all(each["passed"] for each in story.verified["tiled_equals_whole"].values())
        cards.append(("yes" if passed else "no", "tiled equals whole, proven"))
    return cards_of(cards)


def show_scores(story: Story, split: str, scores: Tree) -> Markup:
    """Return the scores of one split: classes, confusion, reliability, scenes."""
    swatches = story.colours
    keys = [key for key in _HEADS if scores.get(f"mean_{key}") is not None or key == "iou"]
    rows: list[list[Part]] = [
        [join(swatch(swatches.get(name)), name), *_figures(row, keys), f"{row['num_px']:,}"]
        for name, row in scores["classes"].items()
    ]
    for title, row in _overall(scores).items():
        rows.append([tag("b", each) for each in (title, *_figures(row, keys), f"{scores['num_px']:,}")])
    aoi = f"Only inside {scores['aoi']}." if scores.get("aoi") else None
    heads = ("class", *(_HEADS[key] for key in keys), "true pixels")
    by_class = join(
        tag("h4", "By class"),
        table(heads, rows),
        tag("p", _ACCURACY, class_="note") if "accuracy" in keys else None,
    )
    confusion = join(
        tag("h4", "Confusion, % of each true class"), _confusion(list(scores["classes"]), scores["confusion"])
    )
    boxes = [by_class, confusion]
    if scores.get("reliability"):
        boxes.append(_reliability(scores["reliability"]))
    if scores.get("boundary"):
        boxes.append(_outlines(scores["boundary"]["pixels"], "diagonal" in scores["boundary"]))
    if scores.get("published"):
        boxes.append(_published(scores))
    boxes.append(join(tag("h4", "By scene"), _scenes(scores["scenes"])))
    parts = tag("div", [tag("div", box) for box in boxes], class_="boxes")
    return section(f"Scores: {split}", parts, note=aoi)


def _overall(scores: Tree) -> dict[str, Tree]:
    """Return the rows below the classes: each class counting alike, and each pixel counting alike."""
    return {
        "mean of classes": {key: scores.get(f"mean_{key}") for key in _HEADS},
        "mean of pixels": {"iou": scores["weighted_iou"], "accuracy": scores["pixel_accuracy"]},
    }


def _outlines(by_px: Tree, by_diagonal: bool) -> Markup:
    rows = [
        (f"{px} px", figure(found["mean"]), figure(found["mean_where_present"]))
        for px, found in by_px.items()
    ]
    note = (
        "How well outlines of classes are met: F of the shares of both outlines that lie within a distance of the "
        "other, averaged over pictures, then classes. A class that is not in a picture counts 1 there, as published, "
        "or is left out (only where present)."
    )
    if by_diagonal:
        note += " BF in the table of classes: within 0.75 % of the diagonal; its mean is over pictures."
    return join(
        tag("h4", "Boundary F"),
        table(("within", "mean", "only where present"), rows),
        tag("p", note, class_="note"),
    )


def _published(scores: Tree) -> Markup:
    cited = scores["published"]
    names = ("weighted_iou", "pixel_accuracy")
    theirs = cited["classes"] | _overall(dict.fromkeys(names) | cited["scores"])
    ours = scores["classes"] | _overall(scores)
    keys = [key for key in _HEADS if any(row.get(key) is not None for row in theirs.values())]
    heads = ("class", *(head for key in keys for head in (f"{_HEADS[key]} here", "published")))
    rows = [
        (name, *(figure(each.get(key)) for key in keys for each in (ours.get(name, {}), row)))
        for name, row in theirs.items()
        if any(row.get(key) is not None for key in keys)
    ]
    return join(
        tag("h4", "Beside what was published"),
        table(heads, rows),
        tag("p", cited["source"], class_="note") if cited["source"] else None,
    )


def _scenes(scenes: list[Tree]) -> Markup:
    has_bf = any(each.get("mean_bf") is not None for each in scenes)
    rows = [
        (
            each["name"],
            figure(each["mean_iou"]),
            percent(each["pixel_accuracy"]),
            *((figure(each.get("mean_bf")),) if has_bf else ()),
            f"{each['num_px']:,}",
        )
        for each in scenes
    ]
    heads = ("scene", "mean IoU", "pixel accuracy", *(("BF",) if has_bf else ()), "pixels")
    shown = table(heads, rows[:_MANY])
    if len(rows) <= _MANY:
        return shown
    more = tag("details", tag("summary", f"{len(rows) - _MANY} more scenes"), table(heads, rows[_MANY:]))
    return join(shown, more)


def _figures(row: Tree, keys: Iterable[str]) -> list[str]:
    return [figure(row[key]) if key in row else "" for key in keys]


def _confusion(names: list[str], counts: list[list[int]]) -> Markup:
    rows = []
    for name, line in zip(names, counts, strict=True):
        total = sum(line)
        cells = [_heat(count, total) for count in line]
        rows.append(tag("tr", tag("th", name, scope="row"), cells))
    corner = tag("th", "true ↓ map →", scope="col")
    head = tag("tr", corner, [tag("th", name, scope="col") for name in names])
    return tag("div", tag("table", tag("thead", head), tag("tbody", rows), class_="heat"), class_="scroll")


def _heat(count: int, total: int) -> Markup:
    share = count / total if total else 0.0
    light = " dark" if share > 0.75 else ""
    shown = "·" if not count else f"{100 * share:.1f}" if share >= 0.0005 else "<0.1"
    colour = f"background:rgba(11,110,143,{share:.3f})"
    return tag("td", shown, style=colour, class_=f"cell{light}", title=f"{count:,} px")


def _reliability(trust: Tree) -> Markup:
    error = figure(trust["expected_calibration_error"])
    note = (
        f"Expected calibration error {error}: how far the share of right pixels is from the confidence stated, "
        "on average. Bars below the dashed line: too sure; above: too modest."
    )
    return join(
        tag("h4", "Reliability"),
        tag("div", draw_reliability(trust["bins"]), class_="chart"),
        tag("p", note, class_="note"),
    )


def show_mix(story: Story) -> Markup | None:
    """Return how much of each class there is, was drawn for training, and was predicted."""
    columns: dict[str, dict[str, float]] = {}
    if story.labelled:
        columns["train, true"] = story.labelled
    drawn = [each["mix"]["class_shares"] for each in story.epochs if "mix" in each]
    if drawn:
        columns["train, drawn"] = drawn[-1]
    for split, scores in story.scores.items():
        names, counts = list(scores["classes"]), scores["confusion"]
        total = max(1, sum(map(sum, counts)))
        columns[f"{split}, true"] = {name: sum(row) / total for name, row in zip(names, counts, strict=True)}
        columns[f"{split}, predicted"] = {
            name: sum(row[number] for row in counts) / total for number, name in enumerate(names)
        }
    if not columns:
        return None
    swatches = story.colours
    names = list(swatches)
    rows = [
        [join(swatch(swatches[name]), name), *(percent(each.get(name)) for each in columns.values())]
        for name in names
    ]
    return section("Class mix", table(("class", *columns), rows))


def run_figures(story: Story) -> dict[str, str]:
    """Return the figures of a run among several."""
    found = first_split(story)
    scores = found[1] if found else {}
    trust = scores.get("reliability") or {}
    return {
        "mean IoU": figure(scores.get("mean_iou")),
        "pixel accuracy": percent(scores.get("pixel_accuracy")),
        "mean F1": figure(scores.get("mean_f1")),
        "calibration error": figure(trust.get("expected_calibration_error")),
    }


def show_agreement(story: Story) -> Markup | None:
    """Return what `evaluate A B` found, where it was run."""
    found = story.compared
    if not found:
        return None
    heads = ("class", "IoU here", "IoU there", "difference")
    rows = [
        (name, figure(row["iou"][0]), figure(row["iou"][1]), _signed(row["difference"]))
        for name, row in found["classes"].items()
    ]
    note = f"The maps agree on {percent(found['agreement'])} of {found['num_px']:,} pixels."
    both = pairs([("here", found["runs"][0]), ("there", found["runs"][1])])
    return section("Against another run", both, table(heads, rows), note=note)


def _signed(value: float | None) -> str:
    return "–" if value is None else f"{value:+.4f}"


def _show(story: Story) -> list[Markup | None]:
    """Return what there is to say of classes of pixels."""
    run, splits = story.run, story.scores.items()
    return [
        drawn_from(run.scores, "evaluate", show_summary, story),
        *(drawn_from(run.scores, "evaluate", show_scores, story, *each) for each in splits),
        *(drawn_from(run.scores, "evaluate", show_places, story, *each) for each in splits),
        drawn_from(run.comparison, "evaluate", show_agreement, story),
        drawn_from(run.path, "train", show_mix, story),
    ]


CHAPTER = Chapter(INFO.score, INFO.score_name, _show, run_figures)
