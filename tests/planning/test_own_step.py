"""What a caller may say of a step, what is refused in words, and what a real step is run for."""

from __future__ import annotations

import gc
import re
import weakref
from typing import Any
from unittest.mock import Mock

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import outsize
from outsize.errors import ModelError, PlanError
from outsize.measure.tracing.recorder import record
from outsize.plan.cost import StepCost
from outsize.plan.plan import Plan
from outsize.plan.step import StepFacts
from outsize.planning.own_step import OwnStep, facts_of, own_step, peak_as_planned

IMAGES = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(1))


def _net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 2, 1))


class _Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = _net()

    def forward(self, one: Tensor, other: Tensor) -> Tensor:
        found: Tensor = self.inner(one + other)
        return found


class _ByName(_Two):
    def forward(self, *, one: Tensor, other: Tensor) -> Tensor:
        return super().forward(one, other)


class _OfDict(_Two):
    def forward(self, batch: dict[str, Tensor]) -> Tensor:  # type: ignore[override]
        return super().forward(batch["one"], batch["other"])


@pytest.mark.parametrize(
    ("model", "example"),
    [
        (_Two(), (IMAGES, IMAGES)),
        (_Two(), [IMAGES, IMAGES]),
        (_Two(), {"other": IMAGES, "one": IMAGES}),
        (_ByName(), {"one": IMAGES, "other": IMAGES}),
        (_OfDict(), {"one": IMAGES, "other": IMAGES}),
    ],
)
def test_inputs_are_spread_over_forward(model: nn.Module, example: Any) -> None:
    fit = outsize.within(model, example, "1GiB")
    assert fit.recorded is None
    assert fit.plan.peak_bytes > IMAGES.nbytes


FAILS = r"a step of Sequential on the example fails: found "


@pytest.mark.parametrize(
    ("asked", "refusal"),
    [
        (
            {"loss": nn.CrossEntropyLoss()},
            f"{FAILS}TypeError: .*, needed a loss .*loss\\(model, example\\); write",
        ),
        ({"loss": lambda output: output.mean()}, f"{FAILS}TypeError: .* 2 were given, needed a loss "),
        (
            {"loss": lambda net, images: net(images)},
            "nothing to go backward from: found a Tensor of 1024 numb",
        ),
        ({"loss": lambda *_: None}, "nothing to go backward from: found None, needed a tensor of one number"),
        (
            {"loss": lambda net, images: net(images).detach().sum()},
            "found a number that no gradient comes from",
        ),
        (
            {"optimizer": torch.optim.SGD(_net().parameters())},
            "the optimizer cannot be made .* found a SGD, need",
        ),
        ({"optimizer": "adam"}, "the optimizer cannot be made for a plan: found a str, needed a function"),
        ({"optimizer": lambda _: None}, "found a function that returns None, needed .*; write e.g."),
        (
            {"optimizer": lambda _: torch.optim.SGD(_net().parameters())},
            "found a function that returns one of other parameters",
        ),
        (
            {"optimizer": torch.optim.LBFGS},
            "state cannot be counted: found TypeError: .*closure.*; give such",
        ),
        (
            {"example": torch.randn(2, 5, 16, 16)},
            f"{FAILS}RuntimeError: .* 3 channels, .*needed what forward take",
        ),
        ({"example": IMAGES.double()}, f"{FAILS}RuntimeError: .*double.*needed what forward takes"),
        ({"example": {"images": IMAGES}}, f"{FAILS}TypeError: .*dict.*, needed what forward takes: .*; give"),
        (
            {"example": IMAGES.numpy()},
            "the example holds no tensor: found a ndarray, needed tensors; convert",
        ),
        (
            {"model": nn.ReLU()},
            "there is nothing to train: found a ReLU without parameters that want gradients",
        ),
        ({"model": _net().requires_grad_(False)}, "there is nothing to train: found a Sequential without"),
        ({"model": nn.ReLU}, "no model to plan for: found a type, needed an nn.Module; give"),
    ],
)
def test_mistakes_are_refused_in_words(asked: dict[str, Any], refusal: str) -> None:
    given = {"model": _net(), "example": IMAGES, "budget": "1GiB"} | asked
    with pytest.raises(ModelError, match=refusal):
        outsize.within(**given)


def test_outputs_that_hold_no_tensor_are_refused() -> None:
    class Silent(_Two):
        def forward(self, images: Tensor) -> None:  # type: ignore[override]
            self.inner(images)

    with pytest.raises(
        ModelError, match=r"returns nothing to go backward from: found None, needed .*; say what"
    ):
        outsize.within(Silent(), IMAGES, "1GiB")


def test_a_real_step_that_does_not_fit_is_told_with_its_reason() -> None:
    class Full(_Two):
        def forward(self, one: Tensor, other: Tensor) -> Tensor:
            raise torch.OutOfMemoryError(f"no room for {one.shape} and {other.shape}")

    with pytest.raises(
        PlanError,
        match=r"does not fit, .*: found OutOfMemoryError: no room .*, for a step cannot be followed",
    ):
        outsize.within(Full(), (IMAGES, IMAGES), "1GiB")


@pytest.mark.parametrize("kind", [torch.int64, torch.int32, torch.uint8])
def test_whole_numbers_are_reach_as_it_was(kind: torch.dtype) -> None:
    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.out = nn.Embedding(50, 16), nn.Linear(16, 16)

        def forward(self, words: Tensor) -> Tensor:
            assert words.dtype == kind
            assert words.shape == (3, 37)
            found: Tensor = self.out(self.table(words.int()))
            return found

    step = own_step(Words(), torch.zeros(3, 37, dtype=kind), None, torch.optim.AdamW, None)
    followed, reason = facts_of(step)
    assert reason is None
    run, _ = facts_of(own_step(step.model, (step.example,), None, torch.optim.AdamW, None))
    assert StepCost(followed).peak_bytes() == pytest.approx(StepCost(run).peak_bytes(), rel=0.1)
    assert step.calls == [((3, 37),)]


class _Chosen(_Two):
    """Counts its calls, and goes the way that a number says."""

    num_calls = 0

    def forward(self, images: Tensor) -> Tensor:  # type: ignore[override]
        found: Tensor = self.inner(images)
        if type(images) is Tensor:
            self.num_calls += 1
        return found if found.mean() > 0 else -found


def test_the_reason_of_a_real_step_says_no_remedy() -> None:
    model = _Chosen()
    fit = outsize.within(model, IMAGES, "1GiB")
    assert (
        fit.recorded == "forward looks at values (a branch on one, .item()), which shapes alone do not tell"
    )
    assert model.num_calls == 0  # what is in no buffer is put back, too

    class Picks(_Two):
        def forward(self, images: Tensor) -> Tensor:  # type: ignore[override]
            maps: Tensor = self.inner(images)
            return maps[maps > 0]

    fit = outsize.within(Picks(), IMAGES, "1GiB")
    assert fit.recorded is not None
    assert fit.recorded.endswith("returns hangs on values, which shapes alone do not tell")

    class Leaves(_Two):
        def forward(self, images: Tensor) -> Tensor:  # type: ignore[override]
            maps: Tensor = self.inner(images)
            return maps * float(maps.detach().numpy().max())

    fit = outsize.within(Leaves(), IMAGES, "1GiB")
    assert fit.recorded is not None
    assert fit.recorded.startswith("a step cannot be followed on shapes alone: RuntimeError: ")
    assert "needed" not in fit.recorded
    assert ";" not in fit.recorded


@pytest.mark.parametrize("example", [IMAGES, (IMAGES,)])  # followed on shapes, and run
def test_autocast_around_the_call_is_planned_for(example: Any) -> None:
    plain = outsize.within(_net(), example, "1GiB").plan
    half = outsize.within(_net(), example, "1GiB", bf16=True).plan
    assert half.peak_bytes < plain.peak_bytes
    with torch.autocast("cpu", torch.bfloat16):
        assert outsize.within(_net(), example, "1GiB").plan.peak_bytes == half.peak_bytes
        assert outsize.within(_net(), example, "1GiB", bf16=False).plan.peak_bytes == plain.peak_bytes
    with torch.autocast("cpu", torch.float16):
        assert outsize.within(_net(), example, "1GiB").plan.peak_bytes == half.peak_bytes
    with torch.autocast("cpu", enabled=False):
        assert outsize.within(_net(), example, "1GiB").plan.peak_bytes == plain.peak_bytes


def test_batches_are_followed_in_the_layout_they_have() -> None:
    class Flat(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Conv2d(3, 4, 3, padding=1), nn.Linear(4 * 16 * 16, 2)

        def forward(self, images: Tensor) -> Tensor:
            found: Tensor = self.last(self.first(images).view(len(images), -1))  # of channels last: refused
            return found

    assert outsize.within(Flat(), IMAGES, "1GiB").recorded is None


def test_a_tensor_that_is_no_buffer_is_no_obstacle() -> None:
    class Holds(_Two):
        def __init__(self) -> None:
            super().__init__()
            self.scale = torch.tensor(2.0)

        def forward(self, one: Tensor, other: Tensor) -> Tensor:
            return super().forward(one, other) * self.scale.item()

    fit = outsize.within(Holds(), (IMAGES, IMAGES), "1GiB")
    assert fit.recorded is not None
    assert fit.plan.peak_bytes > IMAGES.nbytes


def _loss_that_keeps_much(model: nn.Module, images: Tensor) -> Tensor:
    scores = model(images)
    shares = scores.sigmoid()
    return ((shares * (1 - shares)).square() * F.softplus(-scores)).mean()


@pytest.mark.parametrize("fussy", [False, True], ids=["followed", "recorded"])
def test_what_a_loss_keeps_is_not_the_plans_to_make_again(fussy: bool) -> None:
    def loss(model: nn.Module, images: Tensor) -> Tensor:
        return _loss_that_keeps_much(model, images) * (1.0 if not fussy or images.mean().item() > -9 else 2.0)

    step = own_step(_net(), IMAGES, loss, None, None)
    facts, reason = facts_of(step)
    assert (reason is not None) == fussy
    last = max(op.index for op in facts.ops if op.module == "3")
    assert max(each.packed for each in facts.saved) <= last
    assert not {"(loss)"} & {each.key[0] for each in facts.saved}
    assert any(op.module == "(loss)" for op in facts.ops)


class _Shared(nn.Module):
    """Calls one block three times and names what it gets, so that forward holds it for long."""

    def __init__(self, *, fussy: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.fussy, self.first = fussy, nn.Conv2d(3, 8, 3, padding=1)
        self.block = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())

    def forward(self, images: Tensor) -> Tensor:
        one = self.first(images)
        two = self.block(one)
        three = self.block(two)
        four = self.block(three)
        if self.fussy and float(four.detach().mean()) > 1e9:
            four = -four
        return one + two + three + four


def _sum(model: nn.Module, images: Tensor) -> Tensor:
    found: Tensor = model(images).float().sum()
    return found


@pytest.mark.parametrize("share", [0.9, 0.8, 0.75])
def test_a_recorded_step_takes_what_its_plan_says(share: float) -> None:
    images = torch.randn(2, 3, 64, 64)
    plain = outsize.within(_Shared(fussy=True), images, "1GiB", optimizer=None, loss=_sum)
    budget = int(share * plain.plan.peak_bytes / 0.7)
    model = _Shared(fussy=True)
    fit = outsize.within(model, images, budget, optimizer=None, loss=_sum)
    assert fit.recorded is not None
    assert fit.plan.recompute is not None
    assert fit.plan.peak_bytes <= 0.7 * budget
    with fit:
        facts = record(lambda: _sum(model, images).backward(), model, given=[images])
    assert StepCost(facts).peak_bytes() == fit.plan.peak_bytes


def test_a_recorded_step_that_takes_too_much_is_refused_with_what_was_seen() -> None:
    images = torch.randn(2, 3, 64, 64)
    plain = outsize.within(_Shared(fussy=True), images, "1GiB", optimizer=None, loss=_sum).plan.peak_bytes
    budget = int(0.65 * plain / 0.7)
    with pytest.raises(PlanError, match="a step does not fit the budget") as refused:
        outsize.within(_Shared(fussy=True), images, budget, optimizer=None, loss=_sum)
    least, most = re.findall(r"at (?:least|most) ([\d.]+) MiB", str(refused.value))
    assert float(least) > float(most)


def test_frozen_parts_are_no_part_of_recipes() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(_block(3), _block(16), _block(16), nn.Conv2d(16, 4, 1))
    model[0].requires_grad_(False)
    images = torch.randn(2, 3, 64, 64)
    plain = outsize.within(model, images, "1GiB", optimizer=None).plan.peak_bytes
    fit = outsize.within(model, images, int(0.8 * plain / 0.7), optimizer=None)
    assert fit.recorded is None
    assert peak_as_planned(own_step(model, images, None, None, None), fit.plan) == fit.plan.peak_bytes


def _block(num_bands: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(num_bands, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU())


def test_a_step_with_all_that_is_saved_in_host_memory_is_the_step_that_keeps_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def cramped(*args: Any, away: bool = False, **settings: Any) -> StepFacts:
        if not away:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return record(*args, away=away, **settings)

    images = torch.randn(2, 3, 64, 64)
    model = _Shared(fussy=True)
    before = {name: each.clone() for name, each in model.state_dict().items()}
    followed, _ = facts_of(own_step(_Shared(fussy=False), images, None, torch.optim.AdamW, None))
    monkeypatch.setattr("outsize.planning.own_step.record", cramped)
    seen, reason = facts_of(own_step(model, images, None, torch.optim.AdamW, None))
    assert reason is not None
    assert all(torch.equal(each, before[name]) for name, each in model.state_dict().items())
    assert [each.key for each in seen.saved] == [each.key for each in followed.saved]
    one, other = StepCost(seen), StepCost(followed)
    assert one.peak_bytes() == pytest.approx(other.peak_bytes(), rel=0.01)
    # and forward lets go of each as seen on shapes
    for mine, theirs in zip(seen.saved, followed.saved, strict=True):
        assert _let_go_before(one, mine.storage) == _let_go_before(other, theirs.storage)


class _Cramped(_Shared):
    """Runs out of memory in one of its real calls, and counts what such a call has left behind for the next."""

    def __init__(self, fails_in: int) -> None:
        super().__init__(fussy=True)
        self.fails_in = fails_in
        # mocks, for lists would be put back behind each attempt
        self.stored, self.found_alive = Mock(), Mock()

    @property
    def storages(self) -> list[weakref.ref[Any]]:
        return [call.args[0] for call in self.stored.call_args_list]

    @property
    def num_alive(self) -> list[int]:
        return [call.args[0] for call in self.found_alive.call_args_list]

    def forward(self, images: Tensor) -> Tensor:
        found = super().forward(images)
        self.found_alive(sum(each() is not None for each in self.storages))
        if len(self.num_alive) == self.fails_in:
            circle: list[Any] = [self.first(images)]
            circle.append(circle)  # as errors make one with frames, and these hold tensors
            self.stored(weakref.ref(circle[0].untyped_storage()))
            raise torch.OutOfMemoryError("CUDA out of memory")
        return found


@pytest.mark.parametrize("fails_in", [1, 2], ids=["with everything kept", "as planned"])
def test_an_attempt_that_runs_out_of_memory_holds_nothing_when_the_next_begins(fails_in: int) -> None:
    images = torch.randn(2, 3, 64, 64)
    plain = outsize.within(_Shared(fussy=True), images, "1GiB", optimizer=None).plan.peak_bytes
    model = _Cramped(fails_in)
    gc.disable()
    try:
        outsize.within(model, images, int(0.95 * plain / 0.7), optimizer=None)
    finally:
        gc.enable()
    assert len(model.storages) == 1
    assert len(model.num_alive) > fails_in
    assert not any(model.num_alive)


def test_a_graph_that_nobody_goes_back_through_is_freed() -> None:
    """What autograd holds of a forward that broke off must not hold its own node: no collector sees that circle."""
    model = _net()
    storages: list[weakref.ref[Any]] = []

    def run() -> None:
        saved = model[:3](IMAGES)
        storages.append(weakref.ref(saved.untyped_storage()))
        model[3](saved)

    record(run, model, given=[IMAGES])
    assert storages[0]() is None


def _let_go_before(cost: StepCost, storage: int) -> tuple[str, bool]:
    index, ops = cost.let_go[storage], cost.facts.ops
    return ops[index].kind if index < len(ops) else "end", index <= cost.turn


def _pair(model: nn.Module, images: Tensor) -> Tensor:
    """Call the model twice in one step."""
    return (model(images) * model(images.flip(0))).float().mean()


@pytest.mark.parametrize("share", [0.9, 0.75])
def test_a_recorded_step_of_two_calls_takes_what_its_plan_says(share: float) -> None:
    images = torch.randn(2, 3, 64, 64)
    plain = outsize.within(_Shared(fussy=True), images, "1GiB", optimizer=None, loss=_pair)
    model, budget = _Shared(fussy=True), int(share * plain.plan.peak_bytes / 0.7)
    with outsize.within(model, images, budget, optimizer=None, loss=_pair) as fit:
        assert fit.plan.recompute is not None
        facts = record(lambda: _pair(model, images).backward(), model, given=[images])
    assert StepCost(facts).peak_bytes() == fit.plan.peak_bytes <= 0.7 * budget


def test_a_loss_may_take_from_its_example() -> None:
    def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        return (model(batch.pop("images")) * batch.pop("wanted").mean().item()).float().mean()

    images = torch.randn(2, 3, 64, 64)
    example = {"images": images, "wanted": torch.ones(2)}
    plain = outsize.within(_Shared(fussy=False), example, "1GiB", optimizer=None, loss=loss)
    assert plain.recorded is not None
    fit = outsize.within(
        _Shared(fussy=False), example, int(0.8 * plain.plan.peak_bytes / 0.7), optimizer=None, loss=loss
    )
    assert fit.plan.recompute is not None
    assert set(example) == {"images", "wanted"}


def test_a_plan_that_runs_out_of_memory_is_made_tighter(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, tried = peak_as_planned, []

    def failing(step: OwnStep, plan: Plan) -> int:
        tried.append(plan.peak_bytes)
        if len(tried) < 3:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return whole(step, plan)

    images = torch.randn(2, 3, 64, 64)
    plain = outsize.within(_Shared(fussy=True), images, "1GiB", optimizer=None).plan.peak_bytes
    monkeypatch.setattr("outsize.planning.within.peak_as_planned", failing)
    fit = outsize.within(_Shared(fussy=True), images, int(0.95 * plain / 0.7), optimizer=None)
    assert fit.plan.recompute is not None
    assert len(tried) == 3
    assert tried[0] > tried[1] > tried[2]


def test_a_refused_step_that_is_recorded_names_what_it_was_seen_to_take() -> None:
    images = torch.randn(2, 3, 64, 64)
    plain = outsize.within(_Shared(fussy=True), images, "1GiB", optimizer=None).plan.peak_bytes
    for share in (0.3, 0.4):
        with pytest.raises(PlanError) as refused:
            outsize.within(_Shared(fussy=True), images, int(share * plain / 0.7), optimizer=None)
        (least,) = re.findall(r"at least ([\d.]+) MiB", str(refused.value))
        assert float(least) >= 1.5  # by what nobody saw 1.4


def test_what_is_expanded_comes_back_from_host_memory() -> None:
    class Gated(_Two):
        def forward(self, one: Tensor, other: Tensor) -> Tensor:
            found = super().forward(one, other)
            return found * found.mean((2, 3), keepdim=True).expand_as(found)

    model = Gated()
    kept, away = (
        record(lambda: model(IMAGES, IMAGES).sum().backward(), model, given=[IMAGES], away=each)
        for each in (False, True)
    )
    assert [each.key for each in kept.saved] == [each.key for each in away.saved]
    assert StepCost(away).peak_bytes() == pytest.approx(StepCost(kept).peak_bytes(), rel=0.05)


def test_tensors_that_share_memory_are_counted_once() -> None:
    large = torch.randn(64, 3, 16, 16)
    alone, twice, part = (
        facts_of(own_step(_Two(), example, None, None, None))[0]
        for example in ((large, large.clone()), (large, large), (large[:32], large[32:]))
    )
    sizes = [
        sum(each.size_bytes for each in facts.storages if each.role == "input")
        for facts in (alone, twice, part)
    ]
    assert sizes == [2 * large.nbytes, large.nbytes, large.nbytes]
