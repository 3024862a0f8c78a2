"""However a model is called inside of `outsize.within`: the plan is carried out, or it is told that it is not."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

import outsize
from outsize.errors import ModelError, PlanError
from outsize.measure.tracing.recorder import record
from outsize.plan.cost import StepCost
from outsize.plan.step import Storage
from outsize.strategies.forward.within import Within

EXAMPLE = torch.randn(4, 64, 8, generator=torch.Generator().manual_seed(3))


def _net() -> nn.Sequential:
    torch.manual_seed(0)
    blocks = [
        nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 48), nn.GELU(), nn.Linear(48, 16)) for _ in range(4)
    ]
    return nn.Sequential(nn.Linear(8, 16), *blocks, nn.Linear(16, 2))


def _square(model: nn.Module, example: Tensor) -> Tensor:
    found: Tensor = model(example).square().mean()
    return found


def _plan(model: nn.Module, share: float = 0.6) -> Within:
    plain = outsize.within(model, EXAMPLE, "1GiB", optimizer=None, loss=_square).plan.peak_bytes
    fit = outsize.within(model, EXAMPLE, int(share * plain / 0.7), optimizer=None, loss=_square)
    assert fit.plan.recompute is not None
    return fit


@contextmanager
def _told(text: str) -> Iterator[None]:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        yield
    assert sum(text in str(each.message) for each in found) == 1


def _assert_plain(gradients: list[Tensor | None]) -> None:
    plain = _net()
    _square(plain, EXAMPLE).backward()
    for found, each in zip(gradients, plain.parameters(), strict=True):
        assert found is not None
        assert each.grad is not None
        assert torch.equal(found, each.grad)


def _by_parts(model: nn.Module) -> Tensor:
    x = EXAMPLE
    for part in model.children():
        x = part(x)
    return x


@pytest.mark.parametrize(
    ("call", "found"),
    [
        pytest.param(_by_parts, "found a call of '0', needed calls of the model itself", id="parts"),
        pytest.param(lambda model: model.forward(EXAMPLE), "found a call of '0', needed calls", id="forward"),
    ],
)
def test_calls_of_parts_alone_are_told(call: Callable[[nn.Module], Tensor], found: str) -> None:
    model = _net()
    with _told(found), _plan(model):
        for _ in range(2):
            model.zero_grad()
            call(model).square().mean().backward()
    _assert_plain([each.grad for each in model.parameters()])


def test_a_block_without_a_call_is_told() -> None:
    with _told("found no call of the model"), _plan(_net()):
        pass


def test_a_block_inside_of_another_is_refused() -> None:
    model = _net()
    one, other = _plan(model), _plan(model)
    with one, pytest.raises(PlanError, match=r"inside of outsize.within: found a Sequential in both"), other:
        pass
    with one, pytest.raises(PlanError, match=r"inside of outsize.within"):
        outsize.within(model[1], EXAMPLE)
    with other:  # the first one has left
        _square(model, EXAMPLE).backward()
    _assert_plain([each.grad for each in model.parameters()])


def test_two_models_may_be_inside_of_a_block_each() -> None:
    one, other = _net(), _net()
    with _plan(one), _plan(other), warnings.catch_warnings():
        warnings.simplefilter("error")
        (_square(one, EXAMPLE) + _square(other, EXAMPLE)).backward()
    for each in (one, other):
        _assert_plain([parameter.grad for parameter in each.parameters()])


def test_a_compiled_model_is_refused() -> None:
    compiled = torch.compile(_net(), backend="eager")
    with pytest.raises(ModelError, match=r"compiled as a whole .* needed the module as it was"):
        outsize.within(compiled, EXAMPLE)  # type: ignore[arg-type]
    model = _net()
    model.compile(backend="eager")
    with pytest.raises(ModelError, match="compiled as a whole"):
        outsize.within(model, EXAMPLE)


@pytest.mark.parametrize("share", [0.6, 0.75])
def test_a_model_that_is_compiled_later_runs_as_planned_and_that_is_told(share: float) -> None:
    model = _net()
    fit = _plan(model, share)
    compiled = torch.compile(model, backend="eager")
    with fit:
        with _told("runs uncompiled in this block"):
            _square(compiled, EXAMPLE).backward()  # type: ignore[arg-type]
        _assert_plain([each.grad for each in model.parameters()])
        found = []
        for each in (compiled, model):
            _square(each, EXAMPLE).backward()  # type: ignore[arg-type]
            assert fit._saved is not None
            found.append(fit._saved.stats)
    assert found[0] == found[1]
    assert found[0] is not None
    assert found[0].kept_bytes < 0.9 * sum(each.size_bytes for each in _saved_by_plain())


def _saved_by_plain() -> list[Storage]:
    model = _net()
    facts = record(lambda: _square(model, EXAMPLE).backward(), model, given=[EXAMPLE])
    saved = {each.storage for each in facts.saved}
    return [each for each in facts.storages if each.index in saved]


def test_parts_that_are_compiled_may_be_run_again() -> None:
    model = _net()
    for part in model[1:-1]:
        part.compile(backend="eager")
    with _plan(model) as fit:
        assert fit.plan.recompute is not None
        assert fit.plan.recompute.blocks
        for _ in range(2):
            model.zero_grad()
            _square(model, EXAMPLE).backward()
    _assert_plain([each.grad for each in model.parameters()])


def _by_functional_call(model: nn.Module) -> list[Tensor | None]:
    weights = dict(model.named_parameters())
    torch.func.functional_call(model, weights, (EXAMPLE,)).square().mean().backward()
    return [each.grad for each in weights.values()]


def _by_grad(model: nn.Module) -> list[Tensor | None]:
    def loss(weights: dict[str, Tensor]) -> Tensor:
        found: Tensor = torch.func.functional_call(model, weights, (EXAMPLE,)).square().mean()
        return found

    return list(torch.func.grad(loss)(dict(model.named_parameters())).values())


def _by_vmap(model: nn.Module) -> list[Tensor | None]:
    torch.func.vmap(model)(EXAMPLE).square().mean().backward()
    return [each.grad for each in model.parameters()]


def _by_dual(model: nn.Module) -> list[Tensor | None]:
    with forward_ad.dual_level():
        model(forward_ad.make_dual(EXAMPLE, EXAMPLE))
    _square(model, EXAMPLE).backward()
    return [each.grad for each in model.parameters()]


def _by_no_hooks(model: nn.Module) -> list[Tensor | None]:
    with torch.autograd.graph.disable_saved_tensors_hooks("none of yours"):
        found = _square(model, EXAMPLE)
    found.backward()
    return [each.grad for each in model.parameters()]


@pytest.mark.parametrize("run", [_by_grad, _by_vmap, _by_dual, _by_no_hooks])
@pytest.mark.parametrize("share", [0.6, 0.75])
def test_transforms_run_as_plain_steps_and_that_is_told(
    run: Callable[[nn.Module], list[Tensor | None]], share: float
) -> None:
    model = _net()
    with _told("the plan is not carried out: found a call inside of torch.func"), _plan(model, share):
        found = run(model)
    _assert_plain(found)


@pytest.mark.parametrize("share", [0.6, 0.75])
def test_a_call_with_other_weights_is_carried_out(share: float) -> None:
    model = _net()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with _plan(model, share):
            found = _by_functional_call(model)
    _assert_plain(found)


def test_a_loss_by_torch_func_is_refused_in_words() -> None:
    def loss(model: nn.Module, _: Tensor) -> Tensor:
        return torch.stack([each.sum() for each in _by_grad(model) if each is not None]).sum()

    with pytest.raises(
        ModelError, match=r"derivatives by torch.func cannot be planned: .* needed backward by"
    ):
        outsize.within(_net(), EXAMPLE, "1GiB", loss=loss)


class _Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.body = nn.Embedding(100, 8, sparse=True), _net()

    def forward(self, words: Tensor) -> Tensor:
        found: Tensor = self.body(self.words(words))
        return found


@pytest.mark.parametrize("share", [0.6, 0.75])
def test_sparse_gradients_are_planned_for_and_are_the_plain_ones(share: float) -> None:
    words = torch.randint(0, 100, (4, 64), generator=torch.Generator().manual_seed(1))
    model, plain = _Words(), _Words()
    plain.load_state_dict(model.state_dict())
    peak_bytes = outsize.within(model, words, "1GiB", optimizer=None, loss=_square).plan.peak_bytes
    facts = record(lambda: _square(plain, words).backward(), plain, given=[words])
    assert StepCost(facts).peak_bytes() == pytest.approx(peak_bytes, rel=0.03)
    fit = outsize.within(model, words, int(share * peak_bytes / 0.7), optimizer=None, loss=_square)
    with fit:
        _square(model, words).backward()
    assert model.words.weight.grad is not None
    assert model.words.weight.grad.is_sparse
    for one, other in zip(model.parameters(), plain.parameters(), strict=True):
        assert one.grad is not None
        assert other.grad is not None
        assert torch.equal(one.grad.to_dense(), other.grad.to_dense())


def test_a_hook_that_is_set_later_fires_once_and_that_is_told() -> None:
    model, calls = _net(), []
    fit = _plan(model)
    model[1][1].register_forward_hook(lambda *_: calls.append(1))
    with _told("a hook on '1' in it, which would fire twice"), fit:
        _square(model, EXAMPLE).backward()
    assert len(calls) == 1
    _assert_plain([each.grad for each in model.parameters()])


def test_why_blocks_are_not_run_again_is_in_the_plan() -> None:
    model = _net()
    model[2][1].register_forward_hook(lambda *_: None)
    fit = _plan(model, 0.75)
    assert any("module '2', for a hook on '1' in it would fire twice" in each for each in fit.plan.why)
