"""Scores without a map equal those of the map."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from outsize.card import Card
from outsize.data.scenes import label_table, open_scenes
from outsize.infer.stream import Settings
from outsize.metrics.confusion import Counts, Scores
from outsize.plan.plan import Tiling
from outsize.progress import Reporter
from outsize.tasks.segment.maps.scene import Products, predict_scene
from outsize.tasks.segment.scores.count import compare_map
from outsize.tasks.segment.scores.files import MapFiles
from outsize.tasks.segment.scores.validate import count_scenes


@pytest.mark.parametrize("core_px", [32, 256])
def test_counts_are_those_of_the_maps(
    scenes: Path, tmp_path: Path, net: nn.Module, card: Card, tiling: Callable[[int], Tiling], core_px: int
) -> None:
    settings = Settings(batch=2, device=torch.device("cpu"))
    labelled = open_scenes([f"{scenes}/*.tif"], "{stem}_labels.tif")
    assert len(labelled) == 3
    found, unanswered = count_scenes(
        net,
        labelled,
        label_table(range(6), 255),
        bands=card.bands,
        statistics=card.statistics,
        num_classes=6,
        tiling=tiling(core_px),
        settings=settings,
    )
    expected = np.zeros((6, 6), np.int64)
    # the maps hold the card's values, ten above those of the labels
    shifted = label_table(range(6), 255)
    shifted[10:16] = np.arange(6)
    for number, scene in enumerate(labelled):
        products = Products(tmp_path / f"{number}.tif")
        predict_scene(
            net,
            card,
            scene.image,
            products,
            tiling=tiling(64),
            settings=settings,
            weights_id="x",
            reporter=Reporter("quiet"),
        )
        expected += compare_map(MapFiles(products.map_path), scene, shifted, 6).counts
    np.testing.assert_array_equal(found, expected)
    assert found.sum() > 50_000
    assert not unanswered.any()


def test_pixels_without_an_answer_are_wrong(
    scenes: Path, net: nn.Module, card: Card, tiling: Callable[[int], Tiling]
) -> None:
    class NoNumbers(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            return net(images).masked_fill(images[:, 1:2] > 0, torch.nan)  # type: ignore[no-any-return]

    def counted(model: nn.Module) -> tuple[Counts, Counts]:
        return count_scenes(
            model,
            open_scenes([f"{scenes}/*.tif"], "{stem}_labels.tif"),
            label_table(range(6), 255),
            bands=card.bands,
            statistics=card.statistics,
            num_classes=6,
            tiling=tiling(64),
            settings=Settings(batch=2, device=torch.device("cpu")),
        )

    (whole, none), (counts, unanswered) = counted(net), counted(NoNumbers())
    assert not none.any()
    assert unanswered.sum() > 1000
    np.testing.assert_array_equal(counts.sum(axis=1) + unanswered, whole.sum(axis=1))
    scores = Scores(tuple("abcdef"), counts, unanswered).as_dict()
    assert scores["num_px"] == whole.sum()
    assert scores["pixel_accuracy"] == pytest.approx(np.trace(counts) / whole.sum(), abs=1e-6)
    assert scores["mean_iou"] < Scores(tuple("abcdef"), counts).as_dict()["mean_iou"]
