"""Saved tensors that a plan moves to host memory: the step stays the same, and holds what was predicted."""

from __future__ import annotations

import copy
import gc
from dataclasses import replace
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from tests.plan.lines import schedule
from tests.strategies.small import SHAPE, make_batch, op_s, terms
from torch import Tensor, UntypedStorage, nn

from outsize.data.batch import Batch
from outsize.errors import ModelError
from outsize.measure.memory import LiveBytes
from outsize.measure.tracing.step import trace_step
from outsize.models import build_model
from outsize.plan.cost import StepCost
from outsize.plan.memory.recompute import find_recipes
from outsize.plan.plan import Plan, PlannedSwap, Swap
from outsize.plan.search.mixture import Mixture, mix
from outsize.plan.search.timeline import Link
from outsize.plan.step import BLOCK_BYTES
from outsize.strategies.blocks.checkpointing import checkpointed
from outsize.strategies.compose import Step, compose
from outsize.strategies.forward.saving_tensors import saving
from outsize.strategies.swap.traffic import Meter

PLAIN = Plan("train", 2, limit_bytes=1, peak_bytes=1, exact=True, why=())
FAST = Link(1e13, 1e13, 0.0)
SLOW = Link(2e10, 2e10, 0.0)  # making again is cheaper, as far as it goes


def _unet() -> nn.Module:
    torch.manual_seed(0)
    return build_model("unet", num_classes=3, in_channels=3, levels=3, width=8).train()


def _residual() -> nn.Module:
    torch.manual_seed(0)
    return build_model("wider_resnet38", num_classes=3, in_channels=3, width=2).train()


MODELS = {"unet": _unet, "residual": _residual}


def _loss(model: nn.Module, images: Tensor, blocks: tuple[str, ...] = ()) -> Tensor:
    with checkpointed(model, blocks):
        labels = torch.zeros((len(images), *images.shape[2:]), dtype=torch.int64)
        return F.cross_entropy(model(images), labels, reduction="sum")


def _mixed(model: nn.Module, share: float, *, recompute: bool, blocks: tuple[str, ...] = ()) -> Mixture:
    facts = trace_step(model, torch.empty(SHAPE), loss=partial(_loss, blocks=blocks), device="cpu")
    cost = StepCost(facts)
    lasting_bytes = sum(each.size_bytes for each in facts.storages if each.born < 0)
    budget_bytes = lasting_bytes + share * (cost.peak_bytes() - lasting_bytes)
    recipes = find_recipes(cost, op_s) if recompute else []
    return mix(cost, recipes, op_s, SLOW if recompute else FAST, budget_bytes, least_bytes=1024)


def _plan(found: Mixture, blocks: tuple[str, ...] = ()) -> Plan:
    return replace(PLAIN, recompute=found.as_recompute(blocks), swap=found.swap)


def _train(model: nn.Module, step: Step, num_steps: int = 3) -> list[Tensor]:
    """Return losses, the last gradients and all buffers."""
    found = []
    for number in range(num_steps):
        torch.manual_seed(number)
        model.zero_grad(set_to_none=True)
        found += step(make_batch(), last=True).values()
        with torch.no_grad():
            for each in model.parameters():
                if each.grad is not None:
                    each.sub_(1e-3 * each.grad)
    found += [each.grad for each in model.parameters() if each.grad is not None]
    return [*found, *model.buffers()]


@pytest.mark.parametrize("recompute", [False, True], ids=["move", "move-recompute"])
@pytest.mark.parametrize("blocks", [False, True], ids=["", "blocks"])
@pytest.mark.parametrize("net", MODELS)
def test_the_same_bits_as_plain(net: str, blocks: bool, recompute: bool) -> None:
    model = MODELS[net]()
    paths = {"unet": ("encoder.1", "decoder.0"), "residual": ("mod4.0", "mod5.1")}[net] if blocks else ()
    found = _mixed(model, 0.45, recompute=recompute, blocks=paths)
    assert found.swap is not None
    assert bool(found.recipes) == recompute or net == "residual"
    told: list[str] = []
    plain = copy.deepcopy(model)
    expected = _train(plain, compose(plain, terms, PLAIN, bf16=False))
    ours = _train(model, compose(model, terms, _plan(found, paths), bf16=False, tell=told.append))
    assert told == []
    for one, other in zip(ours, expected, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("recompute", [False, True], ids=["move", "move-recompute"])
def test_the_step_holds_what_was_predicted(recompute: bool) -> None:
    model = _unet()
    found = _mixed(model, 0.6, recompute=recompute)
    step = compose(model, terms, _plan(found), bf16=False)
    batch = make_batch()
    lasting = [*model.parameters(), *model.buffers(), batch.images]
    lasting_bytes = sum(-(-each.nbytes // BLOCK_BYTES) * BLOCK_BYTES for each in lasting)
    for _ in range(3):  # the first is watched, and later ones are the many
        model.zero_grad(set_to_none=True)
        with LiveBytes(BLOCK_BYTES) as live:
            step(batch, last=True)
    peak_bytes = live.peak_bytes + lasting_bytes
    assert peak_bytes == pytest.approx(found.peak_bytes, rel=0.03)


def test_memory_that_is_given_back_in_backward_is_counted_there() -> None:
    model = _unet()
    cost = StepCost(trace_step(model, torch.empty(SHAPE), loss=_loss, device="cpu"))
    first = {saved.storage for saved in cost.facts.saved[:12]}
    forward_s = sum(map(op_s, cost.facts.ops[: cost.turn]))
    size_bytes = sum(cost.by_index[each].size_bytes for each in first)
    link = Link(size_bytes / (1.2 * forward_s), 1e13, 0.0)  # copies go on for a while when backward has begun
    found = schedule(cost, first, op_s, link, cost.peak_bytes())
    assert found is not None
    swap, timeline = found
    assert 0 < sum(each.late for each in swap.moved) < len(swap.moved)
    assert timeline.stall_s == 0
    told: list[str] = []
    plain = copy.deepcopy(model)
    expected = _train(plain, compose(plain, terms, PLAIN, bf16=False))
    step = compose(model, terms, replace(PLAIN, swap=swap), bf16=False, tell=told.append)
    for one, other in zip(_train(model, step), expected, strict=True):
        assert torch.equal(one, other)
    assert told == []
    assert _peak_bytes(model, step) == pytest.approx(timeline.peak_bytes, rel=0.02)


def _peak_bytes(model: nn.Module, step: Step) -> int:
    batch = make_batch()
    lasting = [*model.parameters(), *model.buffers(), batch.images]
    lasting_bytes = sum(-(-each.nbytes // BLOCK_BYTES) * BLOCK_BYTES for each in lasting)
    model.zero_grad(set_to_none=True)
    with LiveBytes(BLOCK_BYTES) as live:
        step(batch, last=True)
    return live.peak_bytes + lasting_bytes


@pytest.mark.parametrize("share", [pytest.param(0.5, marks=pytest.mark.long), 0.33])
@pytest.mark.parametrize("bf16", [False, True], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("link", [None, SLOW], ids=["", "move"])
def test_convolutions_that_run_again_give_the_same_bits_and_the_predicted_peak(
    link: Link | None, bf16: bool, share: float
) -> None:
    model = _unet()
    facts = trace_step(model, torch.empty(SHAPE), loss=_loss, device="cpu", bf16=bf16)
    cost = StepCost(facts)
    lasting_bytes = sum(each.size_bytes for each in facts.storages if each.born < 0)
    budget_bytes = lasting_bytes + share * (cost.peak_bytes() - lasting_bytes)
    found = mix(cost, find_recipes(cost, op_s), op_s, link, budget_bytes, least_bytes=1024)
    assert share < 0.5 or any(recipe.costly for recipe in found.recipes)
    told: list[str] = []
    plain = copy.deepcopy(model)
    expected = _train(plain, compose(plain, terms, PLAIN, bf16=bf16))
    step = compose(model, terms, _plan(found), bf16=bf16, tell=told.append)
    for one, other in zip(_train(model, step), expected, strict=True):
        assert torch.equal(one, other)
    assert told == []
    assert _peak_bytes(model, step) == pytest.approx(found.peak_bytes, rel=0.03)


def _small() -> nn.Module:
    torch.manual_seed(0)
    return build_model("unet", num_classes=3, in_channels=3, levels=2, width=4).train()


def _num_objects() -> int:
    # by type: an `isinstance` of a weak proxy asks the object behind it, which may be gone
    return sum(issubclass(type(each), Tensor | UntypedStorage) for each in gc.get_objects())


@pytest.mark.long
def test_hundreds_of_steps_grow_neither_memory_nor_the_pool() -> None:
    model, meter = _small(), Meter()
    step = compose(model, terms, _plan(_mixed(model, 0.5, recompute=True)), bf16=False, meter=meter)
    batch = make_batch()
    held, lent, num_objects = [], [], []
    gc.disable()
    try:
        for number in range(300):
            model.zero_grad(set_to_none=True)
            with LiveBytes() as live:
                step(batch, last=True)
            held.append(live.now_bytes)
            if number % 50 == 49:
                counted = meter.read()
                assert counted is not None
                lent.append((counted.pinned_bytes, counted.most_pinned_bytes, counted.num_out))
                num_objects.append(_num_objects())
    finally:
        gc.enable()
    assert len(set(held[3:])) == 1
    assert len(set(lent)) == 1
    assert lent[0][0] == 0
    assert lent[0][1] <= counted.planned_pinned_bytes
    assert max(num_objects[1:]) <= num_objects[0]


def test_what_finds_no_room_stays_and_the_step_is_the_same() -> None:
    model = _unet()
    found = _mixed(model, 0.5, recompute=False)
    assert found.swap is not None
    tight = replace(found.swap, pinned_bytes=found.swap.pinned_bytes // 3)
    told: list[str] = []
    meter = Meter()
    plain = copy.deepcopy(model)
    expected = _train(plain, compose(plain, terms, PLAIN, bf16=False))
    step = compose(model, terms, replace(PLAIN, swap=tight), bf16=False, tell=told.append, meter=meter)
    ours = _train(model, step)
    (text,) = told
    assert (
        f"found a pool of {tight.pinned_bytes // 512 * 512 + 512 * (tight.pinned_bytes % 512 > 0)} bytes"
        in text
    )
    counted = meter.read()
    assert counted is not None
    assert counted.num_full > 0
    assert counted.num_out + counted.num_full == 3 * len(found.swap.moved)
    assert counted.num_unmet == counted.num_changed == 0
    for one, other in zip(ours, expected, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("ahead_bytes", [0, 64 * 1024])
@pytest.mark.parametrize("net", MODELS)
def test_everything_moves_where_the_plan_says_so(net: str, ahead_bytes: int) -> None:
    model, meter = MODELS[net](), Meter()
    told: list[str] = []
    plain = copy.deepcopy(model)
    expected = _train(plain, compose(plain, terms, PLAIN, bf16=False))
    everything = replace(PLAIN, swap=Swap((), 1 << 26, ahead_bytes))
    step = compose(model, terms, everything, bf16=False, tell=told.append, meter=meter)
    ours = _train(model, step)
    assert told == []
    counted = meter.read()
    assert counted is not None
    assert counted.num_full == counted.num_unmet == counted.num_changed == 0
    facts = trace_step(plain, torch.empty(SHAPE), loss=_loss, device="cpu")
    saved_bytes = sum(facts.storages[index].size_bytes for index in {each.storage for each in facts.saved})
    assert counted.out_bytes / 3 == pytest.approx(saved_bytes, rel=0.1)  # small ones are rounded
    assert counted.late_share == 1 if ahead_bytes == 0 else counted.late_share < 0.5
    for one, other in zip(ours, expected, strict=True):
        assert torch.equal(one, other)


class _Chunks(nn.Module):
    """Changes parts of one tensor in place that are no views of it, as a GRU does: each counts its own changes."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 1)

    def forward(self, images: Tensor) -> Tensor:
        first, second = torch.unsafe_chunk(self.conv(images), 2, dim=1)
        found = first.add_(1.0).square()  # saves the first, and all of their memory leaves with it
        return found + second.add_(1.0).square()


def test_parts_that_are_no_views_are_not_taken_for_one_another() -> None:
    torch.manual_seed(0)
    model = _Chunks()
    plain = copy.deepcopy(model)
    expected = _train(plain, compose(plain, terms, PLAIN, bf16=False))
    ours = _train(model, compose(model, terms, replace(PLAIN, swap=Swap((), 1 << 26, 0)), bf16=False))
    for one, other in zip(ours, expected, strict=True):
        assert torch.equal(one, other)


class _Varying(nn.Module):
    """Saves larger, smaller and fewer tensors from call to call."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.middle, self.last = nn.Conv2d(3, 8, 1), nn.Conv2d(8, 8, 1), nn.Conv2d(8, 3, 1)
        self.num_calls = 0

    def forward(self, images: Tensor) -> Tensor:
        scale, skips = ((1, False), (2, False), (0.25, False), (1, True))[self.num_calls % 4]
        self.num_calls += 1
        between = F.interpolate(self.first(images), scale_factor=scale).sigmoid()
        between = between if skips else self.middle(between).sigmoid()
        out: Tensor = F.interpolate(self.last(between), size=images.shape[2:])
        return out


def test_a_model_that_saves_otherwise_from_step_to_step() -> None:
    torch.manual_seed(0)
    model = _Varying().train()
    size_bytes = 2 * 8 * 32 * 32 * 4
    moved = tuple(PlannedSwap((path, 0, 0), size_bytes, None, None) for path in ("middle", "last"))
    plan = replace(PLAIN, swap=Swap(moved, 4 * size_bytes))  # room for one of the larger ones
    told: list[str] = []
    meter = Meter()
    plain = copy.deepcopy(model)
    expected = _train(plain, compose(plain, terms, PLAIN, bf16=False), 8)
    step = compose(model, terms, plan, bf16=False, tell=told.append, meter=meter)
    ours = _train(model, step, 8)
    for one, other in zip(ours, expected, strict=True):
        assert torch.equal(one, other)
    changed = [text for text in told if "not those that were planned" in text]
    assert len(changed) == 1
    assert (
        "2 of 2 of another size, one of 256.0 KiB in middle, 0 of 2 not saved, needed 64.0 KiB" in changed[0]
    )
    assert sum("is full" in text for text in told) == 1
    assert len(told) == 2
    counted = meter.read()
    assert counted is not None
    # of each four steps: 2 as planned; 1 of 2 larger ones has room; 2 smaller ones are kept; 1 as planned, 1 not saved
    assert (counted.num_out, counted.num_full, counted.num_changed, counted.num_unmet) == (8, 2, 8, 2)


def test_fewer_tensors_than_in_the_first_step_are_told() -> None:
    model = _Varying().train()
    model.num_calls = 0
    moved = (PlannedSwap(("middle", 0, 0), 2 * 8 * 32 * 32 * 4, None, None),)
    told: list[str] = []
    step = compose(model, terms, replace(PLAIN, swap=Swap(moved, 1 << 20)), bf16=False, tell=told.append)
    for number in (0, 3, 3):
        model.num_calls = number
        step(make_batch(), last=True)
    (text,) = told
    assert "found 1 of 1 not saved" in text


def test_counters_are_those_of_the_plan() -> None:
    model, meter = _unet(), Meter()
    found = _mixed(model, 0.6, recompute=False)
    assert found.swap is not None
    step = compose(model, terms, _plan(found), bf16=False, meter=meter)
    assert meter.read() is None
    _train(model, step, 4)
    counted = meter.read()
    assert counted is not None
    moved_bytes = sum(each.size_bytes for each in found.swap.moved)
    assert counted.num_forwards == 4
    assert counted.num_timed == 1
    assert counted.num_out == counted.num_in == 4 * len(found.swap.moved)
    assert counted.out_bytes == counted.in_bytes == pytest.approx(4 * moved_bytes, rel=0.02)
    assert counted.most_pinned_bytes <= counted.planned_pinned_bytes == found.swap.pinned_bytes
    assert counted.most_pinned_bytes == pytest.approx(counted.planned_pinned_bytes, rel=0.03)
    assert counted.copy_s is not None
    assert counted.hidden_share is not None
    assert 0 <= counted.hidden_share <= 1
    again = meter.read()
    assert again is not None
    assert again.num_out == 0
    del step
    gc.collect()
    assert meter.read() is None  # nothing is kept for its sake


def test_a_tensor_that_is_not_saved_is_told(recwarn: pytest.WarningsRecorder) -> None:
    model = _unet()
    found = _mixed(model, 0.7, recompute=False)
    assert found.swap is not None
    nowhere = replace(found.swap.moved[0], key=("nowhere", 0, 0))
    swap = Swap((nowhere, *found.swap.moved[1:]), found.swap.pinned_bytes)
    step = compose(model, terms, replace(PLAIN, swap=swap), bf16=False)
    _train(model, step, 1)
    assert any("1 are not saved" in str(each.message) for each in recwarn)


def test_a_tensor_changed_after_it_was_saved_is_an_error() -> None:
    class Careless(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 3, 1)

        def forward(self, images: Tensor) -> Tensor:
            between = self.first(images).sigmoid()
            out: Tensor = self.last(between)
            with torch.no_grad():
                between.add_(1)
            return out

    model = Careless().train()
    facts = trace_step(_unet(), torch.empty(SHAPE), loss=_loss, device="cpu")
    assert facts.saved
    swap = Swap((replace(_any_move(), key=("last", 0, 0), size_bytes=64 * 1024),), 1 << 20)
    step = compose(model, terms, replace(PLAIN, swap=swap), bf16=False)
    with pytest.raises(ModelError, match="changed in place"):
        step(make_batch(), last=True)


def _any_move() -> object:
    found = _mixed(_unet(), 0.7, recompute=False).swap
    assert found is not None
    return replace(found.moved[0], release=None, fetch=None)


class _Naming(nn.Module):
    """Each name holds what it was given until forward returns, however long autograd needs that."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(8, 8, 3, padding=1) for _ in range(4))
        self.first, self.last = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(32, 3, 1)

    def forward(self, images: Tensor) -> Tensor:
        a = self.first(images).sigmoid()
        b = self.convs[0](a).sigmoid()
        c = self.convs[1](b).sigmoid()
        d = self.convs[2](c).sigmoid()
        e = self.convs[3](d).sigmoid()
        out: Tensor = self.last(torch.cat((e, e * 2, e * 3, e * 4), dim=1))
        return out


@pytest.mark.parametrize("recompute", [False, True], ids=["move", "mix"])
def test_what_a_forward_still_names_is_counted(recompute: bool) -> None:
    torch.manual_seed(0)
    model = _Naming().train()
    found = _mixed(model, 0.5, recompute=recompute)
    step = compose(model, terms, _plan(found), bf16=False, tell=pytest.fail)
    for _ in range(2):
        step(make_batch(), last=True)
    assert _peak_bytes(model, step) == pytest.approx(found.peak_bytes, rel=0.03)


def test_a_recording_begins_and_ends_with_all_copies_done_and_replays_are_counted() -> None:
    model, batch = _unet(), make_batch()
    plan = _plan(_mixed(model, 0.5, recompute=True))
    forward = saving(model, plan.recompute, plan.swap, print)
    shuttle = forward.shuttle
    assert shuttle is not None

    def step() -> None:
        with forward():
            loss = terms(model, batch)["loss"]
        loss.backward()

    step()
    once = shuttle.counters()
    assert once is not None
    shuttle.before_recording()
    assert shuttle._mover is not None
    assert all(
        free.after is None for free in shuttle._mover.pool._free
    )  # it would wait for what it does not hold
    step()
    shuttle.end_recorded()
    shuttle.after_recording()
    assert all(free.after is None for free in shuttle._mover.pool._free)  # nor others for what it holds
    for _ in range(3):
        shuttle.replayed()
    counted = shuttle.counters()
    assert counted is not None
    assert (counted.num_forwards, counted.num_timed) == (3, 0)
    assert (counted.num_out, counted.out_bytes) == (3 * once.num_out, 3 * once.out_bytes)
    assert (counted.num_in, counted.in_bytes) == (3 * once.num_in, 3 * once.in_bytes)
    step()  # and it goes on without
    shuttle.close()


def test_what_runs_uncounted_may_be_of_any_size() -> None:
    model = _unet()
    plan = _plan(_mixed(model, 0.5, recompute=True))
    forward = saving(model, plan.recompute, plan.swap, print)
    shuttle = forward.shuttle
    assert shuttle is not None

    def step(batch: Batch) -> None:
        with forward():
            loss = terms(model, batch)["loss"]
        loss.backward()

    with shuttle.uncounted():
        step(make_batch().each(lambda tensor: tensor[..., :16, :16].contiguous()))
    nothing = shuttle.counters()
    step(make_batch())
    once = shuttle.counters()
    assert nothing is not None
    assert once is not None
    assert (nothing.num_forwards, nothing.num_changed, nothing.num_out, nothing.num_in) == (0, 0, 0, 0)
    assert (once.num_forwards, once.num_changed) == (1, 0)
    assert once.num_out == once.num_in > 0
    shuttle.close()


def test_a_forward_without_gradients_is_no_deviation_from_the_plan() -> None:
    model, batch, told = _unet(), make_batch(), []
    plan = _plan(_mixed(model, 0.5, recompute=False))
    forward = saving(model, plan.recompute, plan.swap, told.append)
    for _ in range(2):
        with forward():
            terms(model, batch)["loss"].backward()
        with torch.no_grad(), forward():
            terms(model, batch)
    assert forward.shuttle is not None
    counted = forward.shuttle.counters()
    assert counted is not None
    assert (told, counted.num_unmet) == ([], 0)
    forward.shuttle.close()
