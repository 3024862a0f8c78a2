"""Weights on the host, in a world of one process on the CPU: the same training, the same files, the same maps."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from tests.plan.lines import schedule
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from outsize.data.batch import Batch
from outsize.data.targets import ClassRasters
from outsize.errors import PlanError
from outsize.measure.apart import Outcome, apart
from outsize.measure.tracing.step import trace_step
from outsize.models import build_model
from outsize.plan.cost import StepCost
from outsize.plan.memory.recompute import find_recipes
from outsize.plan.plan import Offload, Plan, Recompute, Swap
from outsize.plan.search.timeline import Link
from outsize.plan.step import StepFacts
from outsize.plan.ways.offload import offloaded
from outsize.strategies.compose import Terms, compose
from outsize.strategies.offload import (
    as_held,
    compute_device,
    in_full,
    is_offloaded,
    offload,
    weights_of,
)
from outsize.strategies.saved.hooks import recomputable
from outsize.strategies.swap.traffic import Meter
from outsize.train.optimizer import load_state_tensors, make_optimizer, state_tensors

CPU = torch.device("cpu")
BLOCKS = ("encoder.0", "encoder.1", "decoder.0", "decoder.1")
PLAIN = Plan("train", 2, limit_bytes=1, peak_bytes=1, exact=True, why=())
ON_HOST = Plan("train", 2, limit_bytes=1, peak_bytes=1, exact=True, why=(), offload=Offload(BLOCKS))


@pytest.fixture(autouse=True, scope="module")
def _alone() -> Iterator[None]:
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


def _net(norm: str = "batch") -> nn.Module:
    torch.manual_seed(0)
    return build_model("unet", num_classes=3, in_channels=3, levels=3, width=8, norm=norm).train()


def _batch(num_samples: int = 2) -> Batch:
    generator = torch.Generator().manual_seed(1)
    labels = torch.randint(0, 3, (num_samples, 32, 32), generator=generator, dtype=torch.uint8)
    images = torch.randn((num_samples, 3, 32, 32), generator=generator)
    return Batch(
        images,
        torch.ones(labels.shape, dtype=torch.bool),
        ClassRasters(labels),
        {"loss": float(labels.numel())},
    )


def _terms(model: nn.Module, batch: Batch) -> Terms:
    return {
        "loss": F.cross_entropy(model(batch.images).float(), batch.targets.labels.long(), reduction="sum")
    }


def _optimizer(model: nn.Module, name: str = "adamw") -> torch.optim.Optimizer:
    return make_optimizer(model, name, lr=1e-3, momentum=0.9, weight_decay=1e-2)


def _train(
    model: nn.Module, plan: Plan, num_steps: int = 3, *, bf16: bool = False, name: str = "adamw"
) -> Outcome:
    """Return the losses, the last gradients, and weights and buffers at the end."""
    step = compose(model, _terms, plan, bf16=bf16, tell=pytest.fail)
    optimizer = _optimizer(model, name)
    losses, gradients = {}, {}
    for number in range(num_steps):
        torch.manual_seed(number)
        losses[str(number)] = step(_batch(), last=True)["loss"]
        gradients = in_full(
            {key: each.grad for key, each in model.named_parameters() if each.grad is not None}
        )
        gradients = {key: each.clone() for key, each in gradients.items()}
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return Outcome(losses, gradients, {key: each.clone() for key, each in model.state_dict().items()})


@pytest.mark.parametrize("name", ["adamw", "sgd"])
def test_the_same_training(name: str) -> None:
    model = _net()
    plain = copy.deepcopy(model).to(memory_format=torch.channels_last)
    # AdamW begins by the signs of gradients, and rounding decides about those that are all but zero
    assert apart(_train(model, ON_HOST, name=name), _train(plain, PLAIN, name=name)).largest < 1e-3
    assert is_offloaded(model)
    assert [key for key, _ in model.named_parameters()] == [key for key, _ in plain.named_parameters()]
    held = {key: isinstance(each, DTensor) for key, each in model.named_parameters()}
    assert held["encoder.0.0.weight"]
    assert held["head.weight"]
    assert not held["encoder.0.1.weight"]  # of a norm
    assert [path for path, each in model.named_modules() if isinstance(each, FSDPModule)] == ["", *BLOCKS]


def test_channels_last_weights_are_taken() -> None:
    model = _net().to(memory_format=torch.channels_last)
    assert apart(_train(model, ON_HOST), _train(_net(), PLAIN)).largest < 1e-4


def test_under_autocast_weights_come_in_bf16() -> None:
    model, seen = _net(), set()
    model.encoder[1][0].register_forward_pre_hook(lambda module, _: seen.add(module.weight.dtype))
    ours = _train(model, ON_HOST, bf16=True)
    assert apart(ours, _train(_net(), PLAIN, bf16=True)).largest < 2e-2
    assert seen == {torch.bfloat16}
    assert {each.dtype for each in model.state_dict().values()} == {torch.float32, torch.int64}


def test_with_micro_batches() -> None:
    plans = [Plan(**{**vars(each), "micro_batches": 2}) for each in (ON_HOST, PLAIN)]
    ours, theirs = (_train(_net("none"), each) for each in plans)
    assert apart(ours, theirs).largest < 1e-6


def test_with_tensors_made_again_and_moved_and_blocks_run_again() -> None:
    model = _net()
    twin = copy.deepcopy(model)
    keys = tuple(sorted(recomputable(twin, lambda: _terms(twin, _batch())["loss"])))
    for settings in (
        {"recompute": Recompute(saved=keys)},
        {"recompute": Recompute(blocks=("encoder.1", "decoder.0"))},
        {"swap": Swap((), 1 << 26, 0)},
    ):
        plan = Plan(**{**vars(ON_HOST), **settings})
        assert apart(_train(copy.deepcopy(model), plan), _train(copy.deepcopy(model), PLAIN)).largest < 1e-6


class _ByHand(nn.Module):
    """Two convolutions in one module: a weight that counted would shift the names behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.randn(8, 3, 3, 3) / 5)
        self.second = nn.Parameter(torch.randn(3, 8, 3, 3) / 8)

    def forward(self, images: Tensor) -> Tensor:
        between = F.conv2d(images, self.first, padding=1).sigmoid()
        return F.conv2d(between, self.second, padding=1)


def test_saved_tensors_have_the_same_names_wherever_the_weights_are() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(_ByHand(), nn.ReLU(), nn.Conv2d(3, 3, 1)).train()
    facts = trace_step(
        model, torch.empty(2, 3, 32, 32), loss=lambda net, images: net(images).sum(), device="cpu"
    )
    swap = _moving_all(facts)
    assert ("0", 0, 1) in {each.key for each in swap.moved}  # the input comes before it, and no weight
    plan = Plan(**{**vars(ON_HOST), "offload": Offload(("0",)), "swap": swap})
    meter = Meter()
    step = compose(model, _terms, plan, bf16=False, tell=pytest.fail, meter=meter)
    step(_batch(), last=True)
    counted = meter.read()
    assert counted is not None
    assert counted.num_out == len(swap.moved)
    assert counted.num_changed == 0


def _moving_all(facts: StepFacts) -> Swap:
    cost, link = StepCost(facts), Link(1e13, 1e13, 0.0)
    found = schedule(cost, {each.storage for each in facts.saved}, lambda _: 1.0, link, cost.peak_bytes())
    assert found is not None
    return found[0]


def test_convolutions_do_not_run_again_when_their_weights_are_on_the_host() -> None:
    model = _net()
    weights = weights_of(model)
    for bf16 in (False, True):
        facts = trace_step(
            model,
            torch.empty(2, 3, 32, 32),
            loss=lambda net, images: net(images).float().sum(),
            bf16=bf16,
            device="cpu",
        )
        hosted = offloaded(facts, weights, Link(1e9, 1e9)).facts
        costly, left = (find_recipes(StepCost(each), lambda _: 1.0) for each in (facts, hosted))
        assert any(recipe.costly for recipe in costly)
        assert left
        assert not any(recipe.costly for recipe in left)


def test_a_forward_that_broke_off_does_no_harm() -> None:
    model = _net()
    step = compose(model, _terms, ON_HOST, bf16=False)
    step(_batch(), last=True)
    model.zero_grad(set_to_none=True)

    def fail(*_: object) -> None:
        raise torch.OutOfMemoryError("in the middle")

    hook = model.decoder[0].register_forward_pre_hook(fail)
    with pytest.raises(torch.OutOfMemoryError):
        step(_batch(), last=True)
    hook.remove()
    step(_batch(), last=True)
    plain = _net()
    _terms(plain, _batch())["loss"].div(_batch().totals["loss"]).backward()
    for one, other in zip(model.parameters(), plain.parameters(), strict=True):
        assert other.grad is not None
        assert one.grad is not None
        torch.testing.assert_close(in_full({"": one.grad})[""], other.grad, rtol=1e-5, atol=1e-7)


def test_files_are_the_same_either_way(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    model = _net()
    _train(model, ON_HOST)
    state = model.state_dict()
    assert not any(isinstance(each, DTensor) for each in state.values())
    save_file({key: each.contiguous() for key, each in state.items()}, tmp_path / "weights")
    again = _net()
    again.load_state_dict(load_file(tmp_path / "weights"))
    held = offload(_net(), Offload(BLOCKS), CPU)
    held.load_state_dict(load_file(tmp_path / "weights"))
    for key, value in again.state_dict().items():
        assert torch.equal(held.state_dict()[key], value)


def test_a_training_goes_on_from_a_saved_state_either_way() -> None:
    model = _net()
    step, optimizer = compose(model, _terms, ON_HOST, bf16=False), _optimizer(model)
    _steps(step, optimizer, 2)
    weights = {key: each.clone() for key, each in model.state_dict().items()}
    saved = {key: each.clone() for key, each in in_full(state_tensors(optimizer)).items()}
    assert not any(isinstance(each, DTensor) for each in saved.values())
    _steps(step, optimizer, 2)
    for plan in (ON_HOST, PLAIN):
        other = _net()
        other.load_state_dict(weights)
        again = compose(other, _terms, plan, bf16=False)
        second = _optimizer(other)
        # an optimizer works on in the tensors that it was given
        load_state_tensors(second, as_held(other, {key: each.clone() for key, each in saved.items()}))
        _steps(again, second, 2)
        for key, value in model.state_dict().items():
            torch.testing.assert_close(other.state_dict()[key], value, rtol=1e-5, atol=1e-6)


def _steps(step: object, optimizer: torch.optim.Optimizer, num_steps: int) -> None:
    for _ in range(num_steps):
        step(_batch(), last=True)  # type: ignore[operator]
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


def test_a_phase_may_train_a_part_of_it() -> None:
    model = _net()
    step = compose(model, _terms, ON_HOST, bf16=False)
    step(_batch(), last=True)
    model.zero_grad(set_to_none=True)
    for key, each in model.named_parameters():
        each.requires_grad_(key.startswith("head"))
    step(_batch(), last=True)
    trained = {key for key, each in model.named_parameters() if each.grad is not None}
    assert trained == {"head.weight", "head.bias"}


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_phase_after_a_validation_trains_all_weights(mode: type[torch.no_grad]) -> None:
    """Its optimizer is given the parameters that last, and not those of a forward that no backward followed."""
    found = {}
    for plan in (PLAIN, ON_HOST):
        model = _net()
        step = compose(model, _terms, plan, bf16=False)
        for _ in range(2):
            _steps(step, _optimizer(model), 2)
            model.eval()
            with mode():
                model(_batch().images)
            model.train()
        found[plan] = model.state_dict()
    before = _net().state_dict()
    for key, value in found[PLAIN].items():
        torch.testing.assert_close(found[ON_HOST][key], value, rtol=1e-5, atol=1e-6)
        assert not torch.equal(value, before[key])


@pytest.mark.parametrize("first", ["predict", "train"])
def test_prediction_and_training_in_any_order(first: str) -> None:
    model, plain = offload(_net(), Offload(BLOCKS), CPU), _net()
    images = _batch().images
    for each in (first, "predict", "train", "predict"):
        outputs: list[Tensor] = []
        for net in (model, plain):
            net.train(each == "train")
            with torch.inference_mode(each == "predict"):
                outputs.append(net(images))
            if each == "train":
                outputs[-1].sum().backward()
        torch.testing.assert_close(outputs[0], outputs[1])


def test_a_model_is_taken_once_and_knows_where_it_computes() -> None:
    model = _net()
    assert compute_device(model) == CPU
    assert offload(offload(model, Offload(BLOCKS), CPU), Offload(()), CPU) is model
    assert compute_device(model) == CPU
    weights = weights_of(_net())
    assert weights["encoder.0.0.weight"] == 8 * 3 * 9 * 4
    assert "encoder.0.1.weight" not in weights
    assert as_held(_net(), {"0.exp_avg": torch.ones(2, 2)})["0.exp_avg"].shape == (2, 2)


def test_a_block_that_is_not_there_is_refused() -> None:
    model = _net()
    with pytest.raises(PlanError, match=r"found encoder\.9, needed .*; plan again"):
        offload(model, Offload(("encoder.0", "encoder.9")), CPU)
    assert not is_offloaded(model)
