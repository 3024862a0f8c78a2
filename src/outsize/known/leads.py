"""Names of frames by their time from now: ages of those that are seen, leads of those that come."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

STEP_MINUTES, NUM_OUT = 10, 10  # where a job does not say


def minutes(value: float) -> str:
    """Name a frame by its distance from now."""
    return f"{value:+g} min" if value else "now"


def lead_names(step_minutes: float, num_out: int) -> tuple[str, ...]:
    """Name the frames that come."""
    return tuple(minutes(lead * step_minutes) for lead in range(1, num_out + 1))


def lead_classes(frames: object) -> list[dict[str, Any]]:
    """Return the leads of a forecast in the form of classes: what each channel of an answer is."""
    given = frames if isinstance(frames, Mapping) else {}
    step, num = given.get("step_minutes", STEP_MINUTES), given.get("num_out", NUM_OUT)
    if not isinstance(step, int | float) or not isinstance(num, int) or not 0 < num < 254:
        step, num = STEP_MINUTES, NUM_OUT  # what is wrong is said where the section is checked
    shades = [round(220 - 180 * lead / num) for lead in range(num)]
    return [
        {"name": name, "value": number, "colour": (shade, shade, 255)}
        for number, (name, shade) in enumerate(zip(lead_names(step, num), shades, strict=True))
    ]
