"""What a report says of forecasts: figures beside the baselines, skill by lead, reliability, forecasts and a film."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from outsize.report.curves import Axis, Curve, draw_curves, draw_reliability
from outsize.report.gather import Story
from outsize.report.markup import Markup, join, table, tag
from outsize.report.parts import Chapter, cards_of, drawn_from, figure, first_split, picture_of, section
from outsize.tasks.forecast.info import INFO

Tree = dict[str, Any]
_NAMES = {"model": "model", "flow": "optical flow", "persistence": "persistence"}


def show_summary(story: Story) -> Markup:
    """Return the few figures that matter, as cards."""
    cards: list[tuple[str, str]] = []
    found = first_split(story)
    if found:
        split, scores = found
        means, at = scores["means"], f"at {scores['thresholds'][0]:g} mm/h"
        cards += [
            (figure(means["model"]["csi"][0], 3), f"mean CSI {at}, {split}"),
            (figure(means["flow"]["csi"][0], 3), f"by optical flow ({scores['flow']})"),
            (figure(means["persistence"]["csi"][0], 3), "by persistence"),
            (figure(means["model"]["fss"][0], 3), f"mean FSS {at}"),
            (f"{scores['num_forecasts']:,}", "forecasts"),
        ]
    if story.epochs:
        cards.append((figure(max(each["mean_csi"] for each in story.epochs), 3), "best validation CSI"))
    return cards_of(cards)


def show_scores(story: Story, split: str, scores: Tree) -> Markup:
    """Return the scores of one split: by lead and threshold, reliability, pictures."""
    boxes = [
        join(tag("h4", f"CSI at {threshold:g} mm/h"), _by_lead(scores, number))
        for number, threshold in enumerate(scores["thresholds"])
    ]
    boxes.append(join(tag("h4", f"All scores at {scores['thresholds'][0]:g} mm/h"), _all_scores(scores)))
    if scores.get("reliability"):
        told = scores["reliability"]
        title = f"Probability of {told['threshold']:g} mm/h: forecast, and how often it rained"
        boxes.append(join(tag("h4", title), draw_reliability(told["bins"])))
    pictures = scores["pictures"]
    note = (
        "CSI: hits as a share of all pixels where rain was forecast or came. FSS compares shares of squares of "
        "9 pixels a side. Optical flow carries the last frame on; persistence leaves it where it is."
    )
    return section(
        f"Scores: {split}",
        tag("div", [tag("div", box) for box in boxes], class_="boxes"),
        tag("h4", "A forecast beside what came"),
        picture_of(story.run.path / pictures["film"], "forecast and truth, lead after lead"),
        [picture_of(story.run.path / path, f"{kind} forecast") for kind, path in pictures["sheets"].items()],
        tag("h4", "Where errors are"),
        picture_of(story.run.path / pictures["errors"], "maps of error"),
        note=note,
    )


def show_predicted(story: Story) -> Markup | None:
    """Return the film of what was forecast last."""
    for entry in reversed(story.predicted.get("scenes", [])):
        if "film" in entry:
            shown = picture_of(story.run.predictions / Path(entry["film"]).name, "the last forecast")
            if shown is not None:
                return section("Forecast last", tag("p", f"from {entry['start']}", class_="note"), shown)
    return None


def _by_lead(scores: Tree, number: int) -> Markup:
    minutes = [float(name.removesuffix(" min")) for name in scores["leads"]]
    curves = [
        Curve(
            name,
            [
                (minute, row[number])
                for minute, row in zip(minutes, scores["methods"][method]["csi"], strict=True)
                if row[number] is not None
            ],
        )
        for method, name in _NAMES.items()
    ]
    return draw_curves(Axis("lead, minutes"), Axis("CSI", 0.0, 1.0), curves)


def _all_scores(scores: Tree) -> Markup:
    own = scores["methods"]["model"]
    rows = [
        (
            lead,
            *(figure(own[name][index][0], 3) for name in ("csi", "pod", "far", "bias", "fss")),
            figure(own["mae"][index], 3),
        )
        for index, lead in enumerate(scores["leads"])
    ]
    return table(("lead", "CSI", "POD", "FAR", "bias", "FSS", "MAE, mm/h"), rows)


def _figures(story: Story) -> dict[str, str]:
    """Return the figures of a run among several."""
    found = first_split(story)
    if not found:
        return {}
    means = found[1]["means"]
    return {"mean CSI": figure(means["model"]["csi"][0]), "by optical flow": figure(means["flow"]["csi"][0])}


def _show(story: Story) -> list[Markup | None]:
    """Return what there is to say of forecasts."""
    run = story.run
    return [
        drawn_from(run.scores, "evaluate", show_summary, story),
        *(drawn_from(run.scores, "evaluate", show_scores, story, *each) for each in story.scores.items()),
        drawn_from(run.predictions / "predict.json", "predict", show_predicted, story),
    ]


CHAPTER = Chapter(INFO.score, INFO.score_name, _show, _figures)
