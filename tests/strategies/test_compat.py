"""What torch keeps to itself is still there, and does what we take it for."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch._functorch import config
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from outsize.strategies.compat import compile_errors, no_global_hooks, with_activation_budget


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
