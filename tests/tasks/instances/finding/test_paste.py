"""Masks in windows of their own are those that torchvision pastes into whole pictures."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torchvision.models.detection.roi_heads import paste_masks_in_image

from outsize.tasks.instances.finding import paste
from outsize.tasks.instances.finding.paste import decode_objects


def _answer(num: int, size: tuple[int, int], seed: int = 0) -> dict[str, torch.Tensor]:
    chance = torch.Generator().manual_seed(seed)
    corner = torch.rand((num, 2), generator=chance) * torch.tensor([size[1] * 0.9, size[0] * 0.9])
    sides = 2 + torch.rand((num, 2), generator=chance) * 50
    boxes = torch.cat([corner, corner + sides], 1)
    boxes[:, 0::2] = boxes[:, 0::2].clamp(0, size[1])
    boxes[:, 1::2] = boxes[:, 1::2].clamp(0, size[0])
    return {
        "boxes": boxes,
        "labels": torch.randint(1, 4, (num,), generator=chance),
        "scores": torch.rand(num, generator=chance),
        "masks": torch.rand((num, 1, 28, 28), generator=chance),
    }


@pytest.mark.parametrize("at_once_px", [1 << 21, 700])
def test_masks_equal_those_of_torchvision(at_once_px: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paste, "_AT_ONCE_PX", at_once_px)
    size = (90, 130)
    answers = [_answer(12, size, 1), _answer(0, size), _answer(7, size, 2)]
    found = decode_objects(answers, size)
    assert [len(each) for each in found] == [12, 0, 7]
    for answer, objects in zip(answers, found, strict=True):
        whole = paste_masks_in_image(answer["masks"], answer["boxes"], size)[:, 0].numpy()
        for expected, score, label, each in zip(
            whole, answer["scores"].tolist(), answer["labels"].tolist(), objects, strict=True
        ):
            mask = np.zeros(size, np.bool_)
            mask[each.window.slices] = each.mask
            undecided = np.abs(expected - 0.5) < 1e-5
            assert (mask == (expected > 0.5))[~undecided].all()
            assert (each.class_id, each.score) == (label - 1, pytest.approx(score))


def test_objects_below_the_score_are_left_out() -> None:
    answer = _answer(20, (64, 64))
    found = decode_objects([answer], (64, 64), min_score=0.5)
    assert len(found[0]) == int((answer["scores"] >= 0.5).sum()) > 0
    assert min(each.score for each in found[0]) >= 0.5


def test_an_empty_mask_is_no_object() -> None:
    answer = _answer(3, (64, 64))
    answer["masks"][1] = 0
    assert len(decode_objects([answer], (64, 64))[0]) == 2
