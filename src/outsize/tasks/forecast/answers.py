"""Runs a model over frames, tile by tile: the frames that come."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from outsize.card import Card
from outsize.data.frames import SCALE, UNKNOWN, Levels
from outsize.infer.passes import streaming
from outsize.infer.prepare import make_prepare
from outsize.infer.stream import Settings
from outsize.metrics.forecast import count_forecast, no_counts
from outsize.plan.plan import Tiling
from outsize.raster.reading import SceneInfo, SceneReader
from outsize.tasks.forecast.terms import JUDGED_AT
from outsize.tasks.task import HeldBack


def forecast(model: nn.Module, card: Card, info: SceneInfo, tiling: Tiling, settings: Settings) -> Levels:
    """Return the frames that come (lead, row, column); unknown where the model has no answer."""
    num_leads, base = len(card.classes), base_band(info.band_names)
    made = np.empty((num_leads, info.height, info.width), np.int16)
    with (
        SceneReader(info) as frames,
        streaming(
            model,
            frames,
            tiling.cover(info.height, info.width),
            prepare=make_prepare(card.bands, info, card.statistics),
            decode=_as_numbers,
            settings=settings,
        ) as results,
    ):
        for result in results:
            core = result.tile.core.intersect(info.window)
            answer = np.asarray(result.layers["numbers"], np.float32)[:, : core.height, : core.width]
            if base is not None:
                start = frames.read(core).pixels[base : base + num_leads].clip(min=0)
                answer = answer + start.astype(np.float32) / np.float32(SCALE)
            levels = np.rint(answer * SCALE).clip(0, 2**15 - 1)
            made[:, *core.slices] = np.where(np.isfinite(answer), levels, UNKNOWN)
    return made


def base_band(bands: Sequence[str]) -> int | None:
    """Return the first band of the frames that an answer is added to; None where there are none."""
    return next((band for band, name in enumerate(bands) if name.startswith("flow")), None)


def validate(model: nn.Module, held: HeldBack) -> dict[str, float]:
    """Return the skill of a model on windows that are held back."""
    counts = no_counts(len(held.card.classes), 1)
    for scene in held.scenes:
        size = scene.image.height, scene.image.width
        tiling = held.tiling
        found = forecast(model, held.card, scene.image, _ended(tiling, size), held.settings)
        counts += count_forecast(found, truth_of(scene.labels), (JUDGED_AT,))
    return {"mean_csi": mean_of(counts.csi[:, 0]), "mean_fss": mean_of(counts.fss[:, 0])}


def truth_of(labels: SceneInfo) -> Levels:
    """Read the frames that came."""
    with SceneReader(labels) as reader:
        return reader.read(labels.window).pixels


def mean_of(values: np.ndarray) -> float:
    """Return the mean over leads that have a score; 0 where none has."""
    found = values[np.isfinite(values)]
    return float(found.mean()) if found.size else 0.0


def _ended(tiling: Tiling, size: tuple[int, int]) -> Tiling:
    """Return a tiling in which a scene of one window ends where it ends, as in prediction."""
    from dataclasses import replace

    return replace(tiling, pads=not tiling.is_one(*size))


def _as_numbers(answer: Tensor, valid: Tensor) -> Mapping[str, Tensor]:  # noqa: ARG001 (as every decode)
    return {"numbers": answer.to(torch.float32)}
