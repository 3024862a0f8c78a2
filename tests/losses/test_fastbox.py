"""FastBox learns: which object each cell is to find, the published formulas, and parts that add up."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from outsize.data.boxes import IGNORED
from outsize.data.formats.boxed import read_kitti
from outsize.data.targets import BoxList, BoxLists
from outsize.losses.fastbox import TERMS, assign, sums
from outsize.models.fastbox import CellAnswers, FastBox
from outsize.tiles.window import Window

KITTI = Path(__file__).parents[3] / "shared/data/kitti"
_SIZE = (96, 160)


def _boxes(*rows: tuple[float, float, float, float, int], size: tuple[int, int] = _SIZE) -> BoxList:
    table = np.array(rows, np.float64).reshape(-1, 5)
    return BoxList(size, table[:, :4].astype(np.float32), table[:, 4].astype(np.int64))


def _batch(*pictures: BoxList) -> BoxLists:
    return pictures[0].stack(pictures)


def test_a_cell_finds_the_nearest_centre_or_as_published_the_first() -> None:
    large, small = (0, 0, 150, 90, 0), (60, 34, 63, 40, 1)
    targets = _batch(_boxes(large, small))
    nearest, first = (assign(targets, 3, 5, rule) for rule in ("nearest", "first"))
    # centres at columns 16, 48, 80 ... and rows 16, 48, 80; those of the objects at 75, 45 and 61.5, 37
    assert nearest.labels[0].tolist() == [[0, 1, 1, 1, 0], [0, 2, 1, 1, 0], [0, 1, 1, 1, 0]]
    assert first.labels[0].tolist() == [[0, 1, 1, 1, 0]] * 3
    assert nearest.boxes[0, 1, 1].tolist() == [13.5, -11, 3, 6]


def test_of_two_centres_as_near_the_smaller_object_counts_then_the_first() -> None:
    same = ((32, 32, 64, 64, 0), (40, 40, 56, 56, 1), (40, 40, 56, 56, 2))
    assert assign(_batch(_boxes(*same)), 3, 5).labels[0, 1, 1] == 2
    assert assign(_batch(_boxes(*same)), 3, 5, "first").labels[0, 1, 1] == 1


def test_where_something_is_neutral_no_class_is_learnt_but_that_of_an_object() -> None:
    targets = _batch(_boxes((40, 40, 56, 56, 0), (0, 30, 97, 95, -1)))
    nearest, first = (assign(targets, 3, 5, rule) for rule in ("nearest", "first"))
    # 30 + 2 and 95 - 2 px lie in rows 1 and 2; 97 - 2 px is still in column 2
    assert nearest.is_learnt[0].tolist() == [
        [True] * 5,
        [False, True, False, True, True],
        [False] * 3 + [True] * 2,
    ]
    assert first.is_learnt[0].tolist() == [[True] * 5] + [[False] * 3 + [True] * 2] * 2
    assert first.labels[0, 1, 1] == 1


@pytest.mark.realdata
@pytest.mark.skipif(not KITTI.is_dir(), reason="the KITTI files are not here")
def test_cells_of_481_real_pictures_cover_the_objects_that_were_counted_before(tmp_path: Path) -> None:
    import tarfile

    with tarfile.open(KITTI / "val_gt.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    num_cells, num_covered = {"first": 0, "nearest": 0}, {"first": 0, "nearest": 0}
    by_width, by_height = 1248 / 1242, 384 / 375
    files = sorted(tmp_path.rglob("*.txt"))
    assert len(files) == 481
    for file in files:
        found = read_kitti(file).scaled(by_width, by_height)
        kinds = [
            0 if each in ("Car", "Van") else -1 if each == IGNORED else None for each in found.labels.tolist()
        ]
        kept = [number for number, kind in enumerate(kinds) if kind is not None]
        ids = np.array([kinds[number] for number in kept], np.int64)
        targets = _batch(BoxList((384, 1248), found.sides[kept].astype(np.float32), ids))
        for rule in num_cells:
            wanted = assign(targets, 12, 39, rule)
            num_cells[rule] += int((wanted.labels > 0).sum())
            num_covered[rule] += len(wanted.objects[wanted.labels > 0].unique())
    # counted before, by others: 25.7 and 30.7
    assert {rule: num / 481 for rule, num in num_cells.items()} == pytest.approx(
        {"first": 25.642, "nearest": 30.659}, abs=1e-3
    )
    assert num_covered == {"first": 1718, "nearest": 2110}


def _answers(num: int, num_classes: int, *, like: torch.dtype = torch.float64) -> CellAnswers:
    torch.manual_seed(num)
    shape = (num, _SIZE[0] // 32, _SIZE[1] // 32)
    sizes = (4, num_classes + 1, 4, num_classes + 1)
    return CellAnswers(*(torch.randn(*shape, size, dtype=like) * 9 for size in sizes))


def _plainly(answers: CellAnswers, boxes: BoxList) -> dict[str, float]:
    """Follow the published formulas cell by cell, for one picture and the first object in the file."""
    totals = dict.fromkeys(TERMS, 0.0)
    _, rows, cols, _ = answers.boxes.shape
    for row in range(rows):
        for col in range(cols):
            label, box = 0, torch.zeros(4, dtype=torch.float64)
            neutral = False
            for (left, top, right, bottom), class_id in zip(
                boxes.sides.tolist(), boxes.class_ids.tolist(), strict=True
            ):
                if class_id < 0:
                    in_col = (left + 2) // 32 <= col <= (right - 2) // 32
                    neutral |= in_col and (top + 2) // 32 <= row <= (bottom - 2) // 32
                    continue
                meets = (
                    left < 32 * (col + 1) and right > 32 * col and top < 32 * (row + 1) and bottom > 32 * row
                )
                if meets and not label:
                    across, down = (
                        (left + right) / 2 - 32 * (col + 0.5),
                        (top + bottom) / 2 - 32 * (row + 0.5),
                    )
                    if abs(across) < 57.6 and abs(down) < 57.6:
                        label = class_id + 1
                        box = torch.tensor([across, down, right - left, bottom - top], dtype=torch.float64)
                    else:
                        break
            said = [each[0, row, col] for each in answers]
            apart = box - said[0]
            error = (apart[:2] / box[2:].clamp(min=1)).square().sum()
            confirmed = label if label and error < 0.04 else 0
            if not neutral:
                totals["confidence"] += float(_entropy(said[1], label))
                totals["delta_confidence"] += 0.1 * float(_entropy(said[3], confirmed))
            if label:
                totals["box"] += 0.1 * float(apart.abs().sum())
                totals["delta_box"] += 0.003 * float((apart - said[2]).square().clamp(max=100).sum())
    return {name: total / (rows * cols) for name, total in totals.items()}


def _entropy(logits: Tensor, label: int) -> Tensor:
    return F.cross_entropy(logits[None], torch.tensor([label]))


def test_losses_are_those_of_the_publication() -> None:
    boxes = _boxes((10, 20, 70, 60, 0), (50, 30, 110, 90, 1), (100, 4, 150, 30, -1))
    answers = _answers(1, 2)
    found = sums(answers, _batch(boxes), "first")
    expected = _plainly(answers, boxes)
    assert {name: float(each) for name, each in found.items()} == pytest.approx(expected, rel=1e-12)
    assert min(expected.values()) > 0


def _model() -> FastBox:
    torch.manual_seed(0)
    model = FastBox(num_classes=2, in_channels=3, encoder="vgg16", dropout=0.0)
    model.encoder.features = model.encoder.features[:31]
    return model.double().train()


def _gradients(model: FastBox, images: Tensor, targets: BoxLists, parts: list[slice]) -> list[Tensor]:
    model.zero_grad()
    for part in parts:
        found = sums(model(images[part]), targets.part(part))
        (torch.stack(list(found.values())).sum() / len(targets)).backward()  # type: ignore[no-untyped-call]
    return [each.grad.clone() for each in model.parameters() if each.grad is not None]


def test_four_pictures_are_two_and_two() -> None:
    torch.manual_seed(2)
    images = torch.randn(4, 3, 64, 96, dtype=torch.float64)
    size = (64, 96)
    targets = _batch(
        _boxes((10, 20, 70, 60, 0), size=size),
        _boxes(size=size),
        _boxes((0, 0, 30, 30, 1), (40, 10, 90, 60, 0), size=size),
        _boxes((4, 4, 90, 60, 1), (60, 0, 96, 64, -1), size=size),
    )
    model = _model()
    whole = _gradients(model, images, targets, [slice(0, 4)])
    halves = _gradients(model, images, targets, [slice(0, 2), slice(2, 4)])
    assert len(whole) == len(list(model.parameters()))
    for one, other in zip(whole, halves, strict=True):
        assert float((one - other).abs().max()) <= 1e-12 * max(1.0, float(one.abs().max()))


def test_cells_of_two_halves_of_a_picture_add_up() -> None:
    targets = _batch(_boxes((10, 20, 90, 60, 0), (50, 30, 110, 90, 1), (100, 4, 150, 30, -1)))
    answers = _answers(1, 2)
    whole = sums(answers, targets)
    found = []
    for cols in (slice(0, 2), slice(2, 5)):
        window = Window(0, 32 * cols.start, 96, 32 * (cols.stop - cols.start))
        part = CellAnswers(*(each[:, :, cols] for each in answers))
        found.append(sums(part, targets.crop(window, window)))
    for name in TERMS:
        torch.testing.assert_close(found[0][name] + found[1][name], whole[name], rtol=1e-12, atol=0)


def test_a_wide_halo_is_read_and_not_learnt_from() -> None:
    targets = _batch(_boxes((10, 20, 90, 60, 0)))
    part = targets.crop(Window(0, 0, 96, 160), Window(0, 64, 96, 32))
    wanted = assign(part, 3, 5)
    assert wanted.is_learnt[0].any(0).tolist() == [False, False, True, False, False]
    assert (wanted.labels[0] > 0).any(0).tolist() == [False, False, True, False, False]
