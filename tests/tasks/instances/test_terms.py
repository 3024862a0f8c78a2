"""The task instances: parts of a batch add up, plans change nothing, memory is foretold, and objects are learnt."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from tests.tasks.instances.pictures import STATISTICS, draw, small_model
from torch import Tensor, nn

from outsize.data.batch import Batch
from outsize.data.inputs.normalised import normalise
from outsize.errors import ModelError
from outsize.measure.memory import LiveBytes
from outsize.measure.tracing.recorder import record
from outsize.measure.tracing.step import trace_step
from outsize.metrics.instances import Pictured, average_precision
from outsize.models import build_model
from outsize.models.maskrcnn import MaskRCNN
from outsize.plan.cost import StepCost
from outsize.plan.memory.recompute import find_recipes
from outsize.plan.plan import Plan, Recompute
from outsize.plan.search.mixture import mix
from outsize.plan.search.timeline import Link
from outsize.plan.step import BLOCK_BYTES, StepOp
from outsize.strategies.compose import compose
from outsize.tasks import task_of
from outsize.tasks.instances import terms as instances
from outsize.tasks.instances.finding.paste import decode_objects

_PLAIN = Plan("train", 4, limit_bytes=1, peak_bytes=1, exact=True, why=())
_TERMS = instances.make_loss_terms("", STATISTICS)


def _outcome(model: MaskRCNN, plan: Plan, batch: Batch, told: list[str] | None = None) -> list[Tensor]:
    model = copy.deepcopy(model).train()
    step = compose(model, _TERMS, plan, bf16=False, tell=(told if told is not None else []).append)
    terms = step(batch, last=True)
    gradients = [each.grad for each in model.parameters()]
    assert all(each is not None for each in gradients)
    return [*terms.values(), *(each for each in gradients if each is not None), *model.buffers()]


def _apart(ours: list[Tensor], theirs: list[Tensor]) -> float:
    largest = max(float(each.abs().max()) for each in theirs if each.is_floating_point())
    pairs = zip(ours, theirs, strict=True)
    return max(float((one.double() - other.double()).abs().max()) for one, other in pairs) / largest


@pytest.mark.parametrize("num_parts", [2, 4])
def test_four_pictures_are_two_and_two(num_parts: int) -> None:
    model = small_model("frozen").double()
    batch = draw(4, keys=(11, 12, 13, 14))
    whole = _outcome(model, _PLAIN, batch)
    parts = _outcome(model, replace(_PLAIN, micro_batches=num_parts), batch)
    assert _apart(parts, whole) < 1e-12


def test_other_keys_draw_other_boxes() -> None:
    model = small_model("frozen").double()
    one, other = (_outcome(model, _PLAIN, draw(2, keys=keys)) for keys in ((1, 2), (3, 4)))
    assert _apart(one, other) > 1e-6


def test_a_total_is_the_number_of_pictures_and_never_that_of_the_objects() -> None:
    assert set(draw(4).totals.values()) == {4.0}
    assert set(draw(4).part(slice(0, 2)).totals.values()) == {4.0}


def _op_s(op: StepOp) -> float:
    return op.moved_bytes / 1e12


@pytest.mark.parametrize("way", ["recompute", "swap", "blocks"])
def test_a_step_in_half_the_memory_is_the_plain_one(way: str) -> None:
    model = small_model("batch")
    batch = draw(2)
    loss = instances.loss_on_shapes("", 4)
    cost = StepCost(trace_step(model, (2, 3, 64, 64), loss=loss, device="cpu"))
    lasting_bytes = sum(each.size_bytes for each in cost.facts.storages if each.born < 0)
    budget_bytes = lasting_bytes + 0.5 * (cost.peak_bytes() - lasting_bytes)
    if way == "blocks":
        blocks = tuple(f"backbone.body.layer{number}.{block}" for number in (1, 2, 3, 4) for block in (0, 1))
        plan = replace(_PLAIN, recompute=Recompute(blocks=(*blocks, "roi_heads.mask_head")))
    else:
        recipes = find_recipes(cost, _op_s) if way == "recompute" else []
        link = Link(1e13, 1e13, 0.0) if way == "swap" else None
        found = mix(cost, recipes, _op_s, link, budget_bytes, least_bytes=4096)
        assert (found.swap is not None) == (way == "swap")
        plan = replace(_PLAIN, recompute=found.as_recompute(), swap=found.swap)
    told: list[str] = []
    ours, plain = _outcome(model, plan, batch, told), _outcome(model, _PLAIN, batch)
    assert told == []
    assert _apart(ours, plain) < 1e-6


@pytest.mark.parametrize("num_objects", [1, 40])
def test_memory_is_foretold_from_shapes_whatever_the_objects(num_objects: int) -> None:
    model = small_model("batch").train()
    batch = draw(2)
    objects = tuple((own * 40)[:num_objects] for own in batch.targets.objects)
    batch = replace(batch, targets=replace(batch.targets, objects=objects))
    foretold = StepCost(
        trace_step(model, (2, 3, 64, 64), loss=instances.loss_on_shapes("", num_objects), device="cpu")
    )

    def run() -> None:
        shares = [value / 2 for value in _TERMS(model, batch).values()]
        torch.stack(shares).sum().backward()

    seen = StepCost(record(run, model, given=(batch.images,)))
    assert seen.peak_bytes() == pytest.approx(foretold.peak_bytes(), rel=0.01)


@pytest.mark.long
def test_memory_hardly_grows_with_the_objects_of_a_picture() -> None:
    model = small_model("batch")
    few, many = (
        StepCost(trace_step(model, (1, 3, 256, 256), loss=instances.loss_on_shapes("", number), device="cpu"))
        for number in (500, 4000)  # more pairs with anchors than are compared at once
    )
    assert few.peak_bytes() < many.peak_bytes() < 1.1 * few.peak_bytes()


def test_prediction_on_shapes_is_the_most_that_it_takes() -> None:
    model = small_model("batch").eval()
    shapes = trace_step(instances.OnShapes(model), (1, 3, 64, 64), loss=None, device="cpu")
    with torch.no_grad(), LiveBytes(BLOCK_BYTES) as live:
        model(torch.randn(1, 3, 64, 64))
    lasting_bytes = sum(
        each.size_bytes for each in shapes.storages if each.role == "weight" and each.born < 0
    )
    assert live.peak_bytes <= 1.05 * (StepCost(shapes).peak_bytes() - lasting_bytes)


def test_objects_are_made_up_only_where_nobody_gave_any() -> None:
    model, batch = small_model("frozen"), draw(3)
    assert instances.complete(batch, model, "", STATISTICS) is batch
    made = instances.complete(replace(batch, targets=batch.targets.rasters), model, "", STATISTICS)
    assert [len(own) > 0 for own in made.targets.objects] == [True] * 3


def test_tiles_overlap_by_the_largest_object_and_are_not_exact() -> None:
    halo = task_of("instances").cutting.halo(small_model("frozen", overlap_px=100), 3)
    assert halo.largest_px == 64
    assert halo.stride_px == 64
    assert not halo.exact


def test_a_model_of_pixels_is_refused() -> None:
    model: nn.Module = build_model("unet", num_classes=2, in_channels=3, levels=2, width=4)
    with pytest.raises(ModelError, match="maskrcnn"):
        _TERMS(model, draw(1))


@pytest.mark.long
def test_a_few_pictures_are_learnt_by_heart() -> None:
    model, batch = small_model("group").train(), draw(2)
    step = compose(model, _TERMS, _PLAIN, bf16=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for number in range(60):
        optimizer.param_groups[0]["lr"] = 1e-3 if number < 45 else 2e-4
        terms = step(replace(batch, keys=(2 * number, 2 * number + 1)), last=True)
        losses.append(float(torch.stack(list(terms.values())).sum()))
        optimizer.step()
        optimizer.zero_grad()
    assert losses[-1] < losses[0] / 3
    with torch.no_grad():
        answers = model.eval()(normalise(batch.images, batch.valid, STATISTICS))
    found = decode_objects(answers, (64, 64), min_score=0.05)
    pictures = [Pictured(truth, own) for truth, own in zip(batch.targets.objects, found, strict=True)]
    assert average_precision(pictures, 2).ap50 > 0.8
