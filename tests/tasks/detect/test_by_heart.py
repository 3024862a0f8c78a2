"""FastBox learns a few drawn streets by heart: from scratch, with its dropout, scored by KITTI's measure."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from outsize.data.boxes import Boxes
from outsize.data.formats.boxed import read_kitti
from outsize.data.synthetic import draw_streets
from outsize.data.targets import BoxList
from outsize.losses import fastbox
from outsize.metrics.kitti import kitti_scores
from outsize.models.fastbox import FastBox
from outsize.tasks.detect.files import as_named
from outsize.tasks.detect.settle import FoundBoxes

_DRAWN, _FILLED = (188, 621), (192, 640)
_CLASSES = ("Car", "Pedestrian", "Cyclist")
_NUM, _STEPS, _REPEATS = 3, 90, 10


def _streets(folder: Path) -> tuple[Tensor, list[BoxList], list[Boxes]]:
    draw_streets(folder, _NUM, seed=1, size=_DRAWN)
    images, lists, truth = [], [], []
    for number in range(_NUM):
        pixels = np.asarray(Image.open(folder / f"image_2/{number:06d}.png"), np.float32)
        image = torch.zeros(3, *_FILLED)
        image[:, : _DRAWN[0], : _DRAWN[1]] = torch.from_numpy((pixels - 110) / 60).movedim(-1, 0)
        boxes = read_kitti(folder / f"label_2/{number:06d}.txt")
        ids = [_CLASSES.index(each) if each in _CLASSES else -1 for each in boxes.labels.tolist()]
        images.append(image)
        lists.append(BoxList(_FILLED, boxes.sides.astype(np.float32), np.array(ids)))
        truth.append(boxes)
    return torch.stack(images), lists, truth


@pytest.mark.long
def test_streets_are_learnt_by_heart(tmp_path: Path) -> None:
    images, lists, truth = _streets(tmp_path)
    targets = lists[0].stack(lists)
    torch.manual_seed(0)
    model = FastBox(num_classes=len(_CLASSES), in_channels=3, encoder="resnet18")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(_STEPS):
        for group in optimizer.param_groups:
            group["lr"] = 1e-3 * min(1.0, (step + 1) / 20) * (0.1 if step > 0.8 * _STEPS else 1.0)
        optimizer.zero_grad()
        losses = fastbox.sums(model(images), targets)
        torch.stack(list(losses.values())).sum().div(_NUM).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    model.eval()
    with torch.no_grad():
        answers = model.find(model(images), _FILLED)
    found = []
    for each in answers:
        sides, scores = (each[name].double().numpy() for name in ("boxes", "scores"))
        found.append(as_named(FoundBoxes(sides, each["labels"].numpy() - 1, scores), _CLASSES))
    # one picture several times: few objects do not reach all recalls
    curve = kitti_scores(truth * _REPEATS, found * _REPEATS).curves["Car", "hard", "height"]
    assert curve.num_valid >= 5 * _REPEATS
    assert curve.ap("ap_40") >= 0.9
