"""Segmentation: logits to bytes, labels to totals."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from outsize.data.batch import Batch, reduced
from outsize.data.inputs.edges import MapMaker
from outsize.data.sample import IGNORE
from outsize.data.statistics import BandStatistics
from outsize.data.targets import ClassRasters
from outsize.errors import ModelError
from outsize.infer.stream import NODATA, UNANSWERED
from outsize.models import build_model
from outsize.tasks.segment.maps.decoding import CONFIDENCE_SCALE, Wanted, decode
from outsize.tasks.segment.terms import count_terms, make_loss_terms, wanted_maps


def _logits(num_classes: int = 3) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(2, num_classes, 6, 7, generator=generator)


def _valid() -> torch.Tensor:
    valid = torch.ones(2, 6, 7, dtype=torch.bool)
    valid[0, 1, 2] = valid[1, :, 6] = False
    return valid


@pytest.mark.parametrize("values", [(0, 1, 2), (7, 0, 254)])
@pytest.mark.parametrize("confidence", [False, True])
def test_classes_are_written_as_their_values(values: tuple[int, ...], confidence: bool) -> None:
    logits, valid = _logits(), _valid()
    classes = decode(logits, valid, Wanted(values, confidence=confidence))["classes"]
    expected = np.where(valid, np.array(values)[logits.argmax(1)], NODATA)
    assert classes.dtype == torch.uint8
    np.testing.assert_array_equal(classes, expected)


def test_only_what_is_wanted_is_made() -> None:
    logits, valid = _logits(), _valid()
    assert set(decode(logits, valid, Wanted((0, 1, 2)))) == {"classes", UNANSWERED}
    with_confidence = decode(logits, valid, Wanted((0, 1, 2), confidence=True))
    assert set(with_confidence) == {"classes", "confidence", UNANSWERED}


def test_shares_are_scaled_and_masked() -> None:
    logits, valid = _logits(), _valid()
    layers = decode(logits, valid, Wanted((0, 1, 2), confidence=True, probabilities=True))
    shares = logits.softmax(1)
    confidence, probabilities = layers["confidence"], layers["probabilities"]
    assert confidence.dtype == probabilities.dtype == torch.uint8
    assert probabilities.shape == logits.shape
    assert (confidence[~valid] == NODATA).all()
    assert (probabilities.movedim(1, -1)[~valid] == NODATA).all()
    error = confidence[valid].float() / CONFIDENCE_SCALE - shares.amax(1)[valid]
    assert error.abs().max() <= 0.5 / CONFIDENCE_SCALE + 1e-6
    sums = probabilities.int().sum(1)[valid]
    assert (sums - CONFIDENCE_SCALE).abs().max() <= 2  # each of three bands is rounded on its own
    np.testing.assert_array_equal(probabilities.amax(1)[valid], confidence[valid])


@pytest.mark.parametrize("shares", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_logits_that_are_no_numbers_are_no_class(shares: bool, dtype: torch.dtype) -> None:
    logits, valid = _logits().to(dtype), _valid()
    for row, bad in enumerate((torch.nan, torch.inf)):
        logits[0, 1, row, 3] = bad
    logits[1, :, 0, 0] = -torch.inf  # every class is ruled out
    logits[1, 0, 0, 1] = -torch.inf  # one class is, which is an answer
    logits[0, 0, 1, 2] = torch.nan  # where nothing is valid
    layers = decode(logits, valid, Wanted((0, 1, 2), confidence=shares, probabilities=shares))
    assert layers.pop(UNANSWERED).tolist() == [2, 1]
    for layer in layers.values():
        assert (layer[0, ..., :2, 3] == NODATA).all()
        assert (layer[1, ..., 0, 0] == NODATA).all()
        assert (layer[1, ..., 0, 1] != NODATA).all()
    assert int((layers["classes"] == NODATA).sum()) == int((~valid).sum()) + 3


def test_one_logit_that_is_no_number_is_no_class() -> None:
    logits = torch.tensor([torch.nan, torch.inf, -torch.inf, 1.0]).view(1, 1, 1, 4)
    layers = decode(logits, torch.ones(1, 1, 4, dtype=torch.bool), Wanted((3, 4), confidence=True))
    assert layers["classes"].flatten().tolist() == [NODATA] * 3 + [4]
    assert layers[UNANSWERED].tolist() == [3]


def test_certainty_is_not_taken_for_nodata() -> None:
    logits = torch.tensor([100.0, 0.0]).view(1, 2, 1, 1)
    confidence = decode(logits, torch.ones(1, 1, 1, dtype=torch.bool), Wanted((0, 1), confidence=True))
    assert int(confidence["confidence"]) == CONFIDENCE_SCALE < NODATA


def test_totals_never_divide_by_nothing() -> None:
    labels = torch.full((2, 3, 3), IGNORE, dtype=torch.uint8)
    assert count_terms("cross_entropy", ClassRasters(labels)) == {"cross_entropy": 0.0}
    labels[0, 0, :2] = 1
    assert count_terms("cross_entropy", ClassRasters(labels)) == {"cross_entropy": 2.0}


def test_the_model_is_fed_normalised_pixels() -> None:
    seen = []

    class Spy(torch.nn.Module):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            seen.append(images)
            return images

    images = torch.full((1, 2, 3, 3), 14, dtype=torch.uint8)
    valid = torch.ones(1, 3, 3, dtype=torch.bool)
    valid[0, 0, 0] = False
    batch = Batch(
        images, valid, ClassRasters(torch.zeros(1, 3, 3, dtype=torch.uint8)), {"cross_entropy": 9.0}
    )
    terms = make_loss_terms("cross_entropy", BandStatistics((10.0, 4.0), (2.0, 5.0)))(Spy(), batch)
    assert set(terms) == {"cross_entropy"}
    assert seen[0][0, :, 1, 1].tolist() == [2.0, 2.0]
    assert seen[0][0, :, 0, 0].tolist() == [0.0, 0.0]


def _edged(model: torch.nn.Module, loss: str, *, made: bool) -> dict[str, float]:
    images = torch.zeros(2, 3, 16, 16, dtype=torch.uint8)
    images[..., 8:] = 200
    labels = (images[:, 0] > 100).to(torch.uint8)
    valid = torch.ones_like(labels, dtype=torch.bool)
    maps = MapMaker(wanted_maps(model, loss), (1.0,) * 3)(images, valid, ClassRasters(labels)) if made else {}
    batch = Batch(
        images, valid, ClassRasters(labels), count_terms(loss, ClassRasters(labels), maps=maps), maps
    )
    torch.manual_seed(0)
    terms = make_loss_terms(loss, BandStatistics((100.0,) * 3, (50.0,) * 3))(model, batch)
    return {name: float(value.detach()) / batch.totals[name] for name, value in terms.items()}


def test_maps_that_nobody_made_are_made_on_the_way() -> None:
    torch.manual_seed(0)
    model = build_model("gscnn", num_classes=2, in_channels=3, width=8)
    for norm in model.modules():
        norm.momentum = 0.0  # type: ignore[assignment]
    model.eval()
    assert wanted_maps(model, "gscnn") == ("canny", "edges")
    assert wanted_maps(model, "cross_entropy") == ("canny",)
    made = _edged(model, "gscnn", made=True)
    assert list(made) == ["classes", "edge", "no_edge", "at_edges", "dual"]
    assert _edged(model, "gscnn", made=False) == made
    assert list(_edged(model, "cross_entropy", made=True)) == ["cross_entropy"]


def test_a_loss_about_edges_wants_a_model_that_finds_them() -> None:
    model = build_model("unet", num_classes=2, in_channels=3, levels=2, width=4)
    with pytest.raises(ModelError, match=r"about edges.*found UNet, needed .*gscnn.*train\.loss"):
        _edged(model, "gscnn", made=True)


def test_labels_are_reduced_to_the_output_that_answers_and_totals_are_there_for_all() -> None:
    model = build_model("erfnet", num_classes=3, in_channels=1, width=4, output="encoder")
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 3, (2, 20, 33), generator=generator).to(torch.uint8)
    labels[0, :10] = IGNORE
    totals = count_terms("cross_entropy", ClassRasters(labels), strides=(1, 8))
    fewer = reduced(labels, 8)
    assert totals == {
        "cross_entropy": float((labels != IGNORE).sum()),
        "cross_entropy/8": float((fewer != IGNORE).sum()),
    }
    images = torch.randn(2, 1, 20, 33, generator=generator)
    batch = Batch(images, torch.ones_like(labels, dtype=torch.bool), ClassRasters(labels), totals)
    terms = make_loss_terms("cross_entropy", BandStatistics((0.0,), (1.0,)))
    torch.manual_seed(1)
    found = {name: value.detach() for name, value in terms(model, batch).items()}
    assert list(found) == ["cross_entropy/8"]
    torch.manual_seed(1)
    logits = model(images)[..., :2, :4]
    expected = torch.nn.functional.cross_entropy(logits, fewer.long(), ignore_index=IGNORE, reduction="sum")
    assert float(found["cross_entropy/8"]) == pytest.approx(float(expected.detach()), rel=1e-5)
    assert list(terms(model.eval(), batch)) == ["cross_entropy"]


def test_phases_that_reduce_labels_otherwise_may_weigh_them_otherwise() -> None:
    model = build_model("erfnet", num_classes=2, in_channels=4, width=8).train()
    generator = torch.Generator().manual_seed(3)
    images = torch.randn(2, 4, 16, 16, generator=generator)
    labels = torch.randint(2, (2, 16, 16), generator=generator, dtype=torch.uint8)
    statistics = BandStatistics((0.0,) * 4, (1.0,) * 4)
    each = {8: (1.0, 5.0), 1: (1.0, 3.0)}
    totals = count_terms("cross_entropy", ClassRasters(labels), each, strides=(1, 8))
    batch = Batch(images, torch.ones(labels.shape, dtype=torch.bool), ClassRasters(labels), totals)
    for output, stride, name in (("encoder", 8, "cross_entropy/8"), ("whole", 1, "cross_entropy")):
        assert (
            totals[name]
            == count_terms("cross_entropy", ClassRasters(labels), each[stride], strides=(stride,))[name]
        )
        model.output = output
        sums = []
        for weights in (each, each[stride]):
            torch.manual_seed(0)
            sums.append(make_loss_terms("cross_entropy", statistics, weights)(model, batch)[name].item())
        assert sums[0] == sums[1]
