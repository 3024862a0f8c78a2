"""ERFNet: published parameter counts and memory, sizes, outputs, gradients, options."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from outsize.data.batch import Batch
from outsize.data.statistics import BandStatistics
from outsize.data.targets import ClassRasters
from outsize.errors import ModelError
from outsize.measure.facts import halo_of
from outsize.measure.tracing.step import trace_step
from outsize.models import build_model, label_stride
from outsize.models.erfnet import ERFNet
from outsize.plan.cost import StepCost, summary
from outsize.plan.memory.recompute import find_recipes
from outsize.plan.plan import Plan, Recompute
from outsize.strategies.compose import compose
from outsize.tasks.segment.terms import count_terms, loss_on_shapes, make_loss_terms


def _tiny(**options: object) -> ERFNet:
    torch.manual_seed(0)
    return ERFNet(in_channels=3, num_classes=4, width=4, **options)  # type: ignore[arg-type]


def _published() -> nn.Module:
    with torch.device("meta"):
        return build_model("erfnet", num_classes=20, in_channels=3)


def test_parameters_are_the_published_ones() -> None:
    model = _published()
    counts = {name: sum(p.numel() for p in part.parameters()) for name, part in model.named_children()}
    assert counts["encoder"] == 1_874_044
    assert counts["encoder_head"] == 2_580
    assert counts["decoder"] + counts["head"] == 190_212
    assert sum(counts.values()) == 2_066_836
    assert sum(isinstance(module, nn.BatchNorm2d) for module in model.modules()) == 39


@pytest.mark.parametrize(("output", "gib"), [("encoder", 0.475), ("whole", 0.732)])
def test_saved_bytes_of_either_phase_are_the_published_ones(output: str, gib: float) -> None:
    # per picture of 512 x 1024 in fp32, with the logarithms of the loss
    model = _published()
    model.output = output  # type: ignore[assignment]
    facts = trace_step(model, (2, 3, 512, 1024), loss=loss_on_shapes("cross_entropy"))
    assert summary(facts, 2, 512).saved_bytes / 2 / 2**30 == pytest.approx(gib, rel=0.01)


@pytest.mark.parametrize(("height", "width"), [(64, 48), (37, 61), (1, 1)])
@pytest.mark.parametrize("output", ["whole", "encoder"])
def test_logits_lie_over_any_picture(height: int, width: int, output: str) -> None:
    model = _tiny(output=output)
    images = torch.randn(2, 3, height, width)
    assert model.eval()(images).shape == (2, 4, height, width)
    fewer = (-(-height // 8), -(-width // 8)) if output == "encoder" else (height, width)
    assert model.train()(images).shape == (2, 4, *fewer)
    assert label_stride(model) == (8 if output == "encoder" else 1)


def test_the_encoders_logits_are_repeated_over_their_pixels() -> None:
    model, images = _tiny(output="encoder", dropout=0.0, early_dropout=0.0), torch.randn(1, 3, 24, 32)
    model.eval()
    fewer = model.encoder_head(model.encoder(images))
    assert torch.equal(model(images)[..., 4::8, 4::8], fewer)
    assert torch.equal(model(images)[..., ::8, 7::8], fewer)


def test_the_decoder_takes_no_part_in_the_encoders_output() -> None:
    model = _tiny(output="encoder")
    model(torch.randn(2, 3, 32, 32)).sum().backward()
    trained = {name.partition(".")[0] for name, each in model.named_parameters() if each.grad is not None}
    assert trained == {"encoder", "encoder_head"}


def test_it_can_be_tiled_exactly() -> None:
    halo = halo_of(_tiny(), 3)
    assert halo.exact
    assert halo.stride_px == 8


def test_relu_in_place_keeps_gradients_right() -> None:
    model = ERFNet(in_channels=1, num_classes=2, width=2).double().eval()
    images = torch.randn(1, 1, 8, 8, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(model, (images,), atol=1e-5)


@pytest.mark.parametrize(
    ("option", "value", "needed"),
    [("width", 3, "at least 4"), ("num_classes", 0, "at least 1"), ("output", "decoder", "encoder, whole")],
)
def test_bad_options_are_named(option: str, value: object, needed: str) -> None:
    with pytest.raises(ModelError, match=f"{option}.*{needed}"):
        build_model("erfnet", **{"in_channels": 3, "num_classes": 2, option: value})  # type: ignore[arg-type]


def _gradients(output: str, recompute: Recompute | None) -> dict[str, Tensor]:
    model = _tiny().train()
    model.output = output
    generator = torch.Generator().manual_seed(1)
    labels = torch.randint(0, 4, (2, 32, 32), generator=generator).to(torch.uint8)
    totals = count_terms("cross_entropy", ClassRasters(labels), strides=(1, 8))
    images = torch.randn(2, 3, 32, 32, generator=generator)
    batch = Batch(images, torch.ones_like(labels, dtype=torch.bool), ClassRasters(labels), totals)
    plan = Plan("train", 2, 1, 1, exact=True, why=(), recompute=recompute)
    terms = make_loss_terms("cross_entropy", BandStatistics((0.0,) * 3, (1.0,) * 3))
    torch.manual_seed(3)
    compose(model, terms, plan, bf16=False, tell=lambda _: None)(batch, last=True)
    return {name: each.grad for name, each in model.named_parameters() if each.grad is not None}


@pytest.mark.parametrize("output", ["encoder", "whole"])
def test_the_plan_of_the_whole_serves_the_encoder_alone(output: str) -> None:
    facts = trace_step(_tiny(), (2, 3, 32, 32), loss=loss_on_shapes("cross_entropy"), device="cpu")
    keys = tuple(
        key for recipe in find_recipes(StepCost(facts), lambda _: 1e-6) for key in recipe.keys if key[0]
    )
    assert any(path.startswith("decoder") for path, *_ in keys)
    plain, found = _gradients(output, None), _gradients(output, Recompute(saved=keys))
    assert plain.keys() == found.keys()
    for name, each in plain.items():
        # below rounding there is nothing to compare: a bias before a norm has no gradient
        assert float((found[name] - each).abs().max()) <= 1e-5 * float(each.abs().max()) + 1e-7, name
