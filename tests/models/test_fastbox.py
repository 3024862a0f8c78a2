"""FastBox: its grid, its size, where the second look reads, and what it finds."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from outsize.errors import ModelError
from outsize.models import build_model
from outsize.models.fastbox import CellAnswers, FastBox, cell_centres, read_at_points


def _small(**options: object) -> FastBox:
    torch.manual_seed(0)
    model = FastBox(num_classes=2, in_channels=3, **{"encoder": "resnet18", **options})
    return model.eval()


def test_the_grid_is_the_published_one_and_so_are_the_parameters() -> None:
    with torch.device("meta"):
        model = FastBox(num_classes=1, in_channels=3, encoder="vgg16")
        answers = model(torch.empty(2, 3, 384, 1248))
    assert [tuple(each.shape) for each in answers] == [(2, 12, 39, num) for num in (4, 2, 4, 2)]
    sizes = {name: each.numel() for name, each in model.named_parameters()}
    assert sum(size for name, size in sizes.items() if name.startswith("encoder")) == 14_714_688
    assert sum(size for name, size in sizes.items() if not name.startswith("encoder")) == 618_680


def test_names_of_encoders_are_torchvisions() -> None:
    from torchvision.models import resnet18, vgg16_bn

    with torch.device("meta"):
        for theirs in (resnet18, vgg16_bn):
            own = build_model("fastbox", num_classes=1, in_channels=3, encoder=theirs.__name__)
            names = {
                name.removeprefix("encoder.") for name in own.state_dict() if name.startswith("encoder.")
            }
            assert names == {
                name
                for name in theirs(weights=None).state_dict()
                if not name.startswith(("fc.", "classifier."))
            }


@pytest.mark.parametrize("size", [(64, 96), (32, 160)])
def test_any_multiple_of_32_has_its_grid(size: tuple[int, int]) -> None:
    answers = _small()(torch.zeros(1, 3, *size))
    assert answers.boxes.shape[1:3] == (size[0] // 32, size[1] // 32)


def test_another_size_is_filled_up_behind_its_border() -> None:
    model = _small()
    images = torch.randn(1, 3, 60, 70)
    whole = torch.zeros(1, 3, 64, 96)
    whole[..., :60, :70] = images
    with torch.no_grad():
        for one, other in zip(model(images), model(whole), strict=True):
            assert torch.equal(one, other)
    with pytest.raises(ModelError, match="unknown encoder"):
        _small(encoder="alexnet")


def _read_plainly(features: Tensor, box: Tensor, row: int, col: int) -> Tensor:
    found = []
    for by_width in (-0.25, 0.0, 0.25):
        for by_height in (-0.25, 0.0, 0.25):
            across = ((col + 0.5) * 32 + box[0] + by_width * box[2]) / 8
            down = ((row + 0.5) * 32 + box[1] + by_height * box[3]) / 8
            across, down = across.clamp(0, features.shape[2] - 1), down.clamp(0, features.shape[1] - 1)
            left = int(across.floor().clamp(max=features.shape[2] - 2))
            top = int(down.floor().clamp(max=features.shape[1] - 2))
            right_share, low_share = across - left, down - top
            upper = features[:, top, left] * (1 - right_share) + features[:, top, left + 1] * right_share
            lower = (
                features[:, top + 1, left] * (1 - right_share) + features[:, top + 1, left + 1] * right_share
            )
            found.append(upper * (1 - low_share) + lower * low_share)
    return torch.cat(found)


def test_the_second_look_reads_between_features_down_before_across_and_learns_where() -> None:
    torch.manual_seed(1)
    features = torch.randn(1, 3, 8, 12, dtype=torch.float64)
    boxes = torch.randn(1, 2, 3, 4, dtype=torch.float64) * 30
    boxes.requires_grad_()
    found = read_at_points(features, boxes)
    for row in range(2):
        for col in range(3):
            expected = _read_plainly(features[0], boxes[0, row, col], row, col)
            torch.testing.assert_close(found[0, row, col], expected, rtol=0, atol=1e-12)
    found.square().sum().backward()  # type: ignore[no-untyped-call]
    assert boxes.grad is not None
    assert bool((boxes.grad != 0).any())


def _says(label: int, score: float, *box: float) -> CellAnswers:
    """Let the only cell that says anything, the one of row 1 and column 2, find a box."""
    boxes, logits = torch.zeros(1, 4, 6, 4), torch.tensor([20.0, 0.0, 0.0]).repeat(1, 4, 6, 1)
    middle = torch.tensor([(box[0] + box[2]) / 2, (box[1] + box[3]) / 2]) - cell_centres(boxes)
    boxes[0, ..., :2], boxes[0, ..., 2], boxes[0, ..., 3] = middle, box[2] - box[0], box[3] - box[1]
    shares = torch.full((3,), 1e-9)
    shares[label], shares[0] = score, 1 - score
    logits[0, 1, 2] = shares.log()
    return CellAnswers(boxes - 1.5, torch.zeros_like(logits), torch.full_like(boxes, 1.5), logits)


def test_what_is_found_is_cut_at_the_border_and_has_its_class_and_score() -> None:
    (found,) = _small().find(_says(2, 0.75, -5, 10, 80, 60), (128, 192))
    torch.testing.assert_close(found["boxes"], torch.tensor([[0.0, 10, 80, 60]]))
    assert found["labels"].tolist() == [2]
    torch.testing.assert_close(found["scores"], torch.tensor([0.75]))
    assert bool(found["sound"])


def test_of_two_boxes_of_one_class_the_likelier_stays() -> None:
    answers = _says(1, 0.6, 20, 20, 60, 50)
    answers.delta_logits[0, 0, 1] = torch.tensor([0.1, 0.9, 1e-9]).log()
    answers.delta_logits[0, 2, 3] = torch.tensor([0.5, 1e-9, 0.5]).log()
    (found,) = _small().find(answers, (128, 192))
    assert found["labels"].tolist() == [1, 2]
    torch.testing.assert_close(found["scores"], torch.tensor([0.9, 0.5]))


def test_names_of_options_reach_the_job() -> None:
    model = build_model("fastbox", num_classes=3, in_channels=4, encoder="resnet18", dropout=0.0)
    assert isinstance(model, FastBox)
    answers = model.eval()(torch.zeros(1, 4, 32, 32))
    assert answers.logits.shape == (1, 1, 1, 4)
    assert F.softmax(answers.logits, -1).isfinite().all()
