"""Section about the training: curves of validation, loss and learning rate."""

from __future__ import annotations

from typing import Any

from outsize.report.curves import Axis, Curve, draw_curves, draw_epochs, smooth
from outsize.report.gather import Story
from outsize.report.markup import Markup, tag
from outsize.report.parts import Chapter, section

Tree = dict[str, Any]
_STEPS = Axis("step", low=0.0, whole=True)


def show_training(story: Story, chapter: Chapter) -> Markup | None:
    """Return the curves of loss, learning rate and validation."""
    if not story.steps and not story.epochs:
        return None
    charts = []
    if story.epochs:
        name = chapter.score_name
        points = [(each["epoch"], each[chapter.score]) for each in story.epochs]
        charts.append(draw_epochs(f"validation {name}", [Curve(name, points)]))
    if story.steps:
        terms = sorted({name for each in story.steps for name in each["terms"]})
        lines = []
        for name in terms:
            points = [(each["step"], each["terms"][name]) for each in story.steps if name in each["terms"]]
            lines.append(Curve(name.replace("_", " "), smooth(points)))
        if len(terms) == 1:
            raw = [(each["step"], each["terms"][terms[0]]) for each in story.steps]
            lines.append(Curve("as logged", raw, faint=True))
        charts.append(draw_curves(_STEPS, Axis("training loss", low=0.0), lines))
        rates = Curve("lr", learning_rates(story))
        charts.append(draw_curves(_STEPS, Axis("learning rate", low=0.0), [rates]))
    return section("Training", tag("div", charts, class_="charts"))


def learning_rates(story: Story) -> list[tuple[float, float]]:
    """Return the rates of logged steps, and those known from the job: at the first step of a phase, and once warm.

    One step of ten is logged, so that a short warm-up would not be seen. It rises evenly to the rate of its phase.
    """
    rates = {each["step"]: each["lr"] for each in story.steps}
    section_ = story.job.get("train", {})
    phases = section_.get("phases") or [{}]
    num_warm = section_.get("warmup_steps", 0)
    for number in sorted({each.get("phase", 0) for each in story.steps}):
        lr = phases[number].get("lr") or section_.get("lr") if number < len(phases) else None
        if lr is None:
            continue
        before = max((each["step"] for each in story.epochs if each.get("phase", 0) < number), default=0)
        last = max(each["step"] for each in story.steps if each.get("phase", 0) == number)
        for step in {1, max(1, num_warm)}:
            if before + step <= last:
                rates.setdefault(before + step, lr * step / max(1, num_warm))
    return sorted(rates.items())
