"""What torch keeps to itself is still there, and does what we take it for."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._functorch import config
from torch.autograd import forward_ad
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from outsize.strategies.compat import (
    compile_errors,
    made_by,
    no_global_hooks,
    noted,
    seen_as,
    takes_no_hooks,
    with_activation_budget,
)


class _Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, word: str) -> Tensor:
        ctx.word = word
        return seen_as(2 * x, (6,))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return 2 * grad.view(2, 3), None


def test_memory_is_seen_in_another_shape_and_is_no_view_of_anybody() -> None:
    x = torch.arange(6.0).view(2, 3)
    seen = seen_as(x, (3, 2))
    assert seen.tolist() == [[0, 1], [2, 3], [4, 5]]
    assert seen.data_ptr() == x.data_ptr()
    assert not seen._is_view()
    given = torch.ones(2, 3, requires_grad=True)
    _Twice.apply(given, "").mul_(3).sum().backward()  # a view could not be changed in place
    assert given.grad is not None
    assert given.grad.tolist() == [[6.0] * 3] * 2


def test_a_tensor_tells_the_function_that_made_it() -> None:
    given = torch.ones(2, 3, requires_grad=True)
    made = _Twice.apply(given, "so")
    context = made_by(_Twice, made)
    assert context is not None
    assert context.word == "so"
    assert made_by(torch.autograd.Function, made) is None
    assert [made_by(_Twice, each) for each in (given, made + 1, made.detach())] == [None] * 3


def test_hooks_of_all_modules_are_left_out_and_put_back() -> None:
    seen: list[str] = []
    layer, x = nn.ReLU(), torch.ones(1)
    handles = [
        register_module_forward_pre_hook(lambda *_: seen.append("before")),
        register_module_forward_hook(lambda *_: seen.append("after"), always_call=True),
        register_module_forward_hook(lambda *_: seen.append("with keywords"), with_kwargs=True),
    ]
    try:
        layer(x)
        assert seen == ["before", "after", "with keywords"]
        with no_global_hooks():
            layer(x)
        assert len(seen) == 3
        with pytest.raises(RuntimeError, match="stop"), no_global_hooks():
            raise RuntimeError("stop")
        layer(x)
        assert seen == ["before", "after", "with keywords"] * 2
    finally:
        for handle in handles:
            handle.remove()
    layer(x)
    assert len(seen) == 6


def test_the_activation_budget_is_there_and_set_while_compiling_alone() -> None:
    assert config.activation_memory_budget == 1.0
    seen: list[float] = []

    def backend(graph: Any, _: Any) -> Any:
        seen.append(config.activation_memory_budget)
        return graph.forward

    run = torch.compile(lambda x: x + 1, backend=with_activation_budget(backend, 0.25))
    run(torch.ones(1))
    assert seen == [0.25]
    assert config.activation_memory_budget == 1.0


def test_errors_of_the_compiler_can_be_told() -> None:
    def fail(*_: object) -> None:
        raise KeyError("of a compiler")

    with pytest.raises(compile_errors(), match="of a compiler"):
        torch.compile(lambda x: x + 1, backend=fail)(torch.ones(1))
    assert not issubclass(torch.OutOfMemoryError, compile_errors())


def test_torch_has_what_pools_and_notes_of_memory_are_asked_by() -> None:
    names = ("beginAllocateCurrentThreadToPool", "endAllocateToPool", "releasePool", "isHistoryEnabled")
    assert [
        each for each in (*names, "clearCublasWorkspaces") if not hasattr(torch._C, f"_cuda_{each}")
    ] == []


def test_notes_of_memory_are_ended_whatever_happens_and_those_of_others_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    on: list[object] = []
    monkeypatch.setattr(torch._C, "_cuda_isHistoryEnabled", lambda: bool(on and on[-1]))
    monkeypatch.setattr(torch.cuda.memory, "_record_memory_history", lambda enabled, **_: on.append(enabled))
    taken = {"action": "alloc"}
    monkeypatch.setattr(torch.cuda.memory, "_snapshot", lambda _: {"device_traces": [[], [taken]]})
    with noted(torch.device("cuda", 1)) as found:
        assert found == []
        with pytest.raises(RuntimeError, match="is on already"), noted(torch.device("cuda", 1)):
            pass
    assert found == [taken]
    with pytest.raises(ValueError, match="in between"), noted(torch.device("cuda", 1)):
        raise ValueError("in between")
    assert on == ["all", None, "all", None]


def test_inside_and_outside_of_transforms() -> None:
    seen: list[bool] = []

    def look(x: Tensor) -> Tensor:
        seen.append(takes_no_hooks())
        return x.sum()

    x = torch.ones(3)
    look(x)
    torch.func.grad(look)(x)
    torch.func.vmap(look)(x)
    torch.func.jvp(look, (x,), (x,))
    with forward_ad.dual_level():
        look(x)
    look(x)
    assert seen == [False, True, True, True, True, False]
