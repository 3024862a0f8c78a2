"""Pictures of a segmentation: input, truth and prediction side by side."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outsize.runs import write_beside

Colour = tuple[int, int, int]


def draw_triptych(
    path: Path,
    image: NDArray[Any],
    truth: NDArray[np.uint8],
    predicted: NDArray[np.uint8],
    classes: Sequence[tuple[str, Colour]],
    *,
    title: str,
) -> None:
    """Write a PNG of a scene's window (rows, columns, 3 as 0..1), its class indices, and those predicted."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    height, width = truth.shape
    figure = Figure(figsize=(15, 5.6 * height / width + 0.9), dpi=100, layout="constrained")
    FigureCanvasAgg(figure)
    panels = (
        ("input", image),
        ("truth", colourise(truth, classes)),
        ("prediction", colourise(predicted, classes)),
    )
    for axes, (name, picture) in zip(figure.subplots(1, 3), panels, strict=True):
        axes.imshow(picture, interpolation="nearest")
        axes.set_title(name)
        axes.set_axis_off()
    patches = [Patch(color="#{:02x}{:02x}{:02x}".format(*colour), label=name) for name, colour in classes]
    figure.legend(handles=patches, loc="outside lower center", ncols=len(patches), frameon=False)
    figure.suptitle(title)
    with write_beside(path) as temporary:
        figure.savefig(temporary, format="png")


def colourise(indices: NDArray[np.uint8], classes: Sequence[tuple[str, Colour]]) -> NDArray[np.uint8]:
    """Give each class its colour; everything else is white."""
    palette = np.full((256, 3), 255, np.uint8)
    palette[: len(classes)] = [colour for _, colour in classes]
    return palette[indices]


def stretch(pixels: NDArray[Any], valid: NDArray[np.bool_], band_names: Sequence[str]) -> NDArray[np.float32]:
    """Turn bands (band, row, column) into a picture: red, green, blue by name or the first ones, 2 to 98 %."""
    chosen = _visible(band_names, pixels.shape[0])
    picture = np.ones((*valid.shape, 3), np.float32)
    for channel, band in enumerate(chosen):
        values = pixels[band].astype(np.float32)
        if valid.any():
            low, high = np.percentile(values[valid], (2, 98))
            values = np.clip((values - low) / max(high - low, 1e-6), 0, 1)
        picture[..., channel] = np.where(valid, values, 1.0)
    return picture


def _visible(band_names: Sequence[str], num_bands: int) -> tuple[int, int, int]:
    names = [name.lower() for name in band_names]
    if all(colour in names for colour in ("red", "green", "blue")):
        return names.index("red"), names.index("green"), names.index("blue")
    return (0, 1, 2) if num_bands >= 3 else (0, 0, 0)
