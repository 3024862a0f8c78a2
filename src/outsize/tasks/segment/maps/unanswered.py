"""What is said of pixels whose logits are NaN or infinite though the weights are finite: they get no class."""

from __future__ import annotations

from pathlib import Path

from outsize.errors import ModelError, explain
from outsize.units import format_count


def unanswered_line(name: str, num_px: int) -> str:
    """Warn of the pixels of a scene that got no class."""
    return (
        f"warning: {format_count(num_px, 'pixel')} of {name} got no class: the logits there are NaN or infinite, "
        "though all weights are finite; the map has nodata there: set train.precision to fp32, or look at the "
        "values of the scene"
    )


def left_out_line(name: str, num_px: int) -> str:
    """Warn of the pixels of a scene that no score can count, for the map has nothing there."""
    return (
        f"warning: {format_count(num_px, 'pixel')} of {name} got no class when it was predicted, for the logits there "
        "are NaN or infinite: scores leave them out"
    )


def none_answered(path: Path) -> ModelError:
    """Return the error to raise where no pixel of a scene got a class."""
    found, remedy = (
        "NaN or infinity for every pixel",
        "set train.precision to fp32, or train with a lower rate",
    )
    return ModelError(explain(f"the model has no answer for {path}", found, "finite logits", remedy))
