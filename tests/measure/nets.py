"""Small networks written as one function each, with whatever they remember."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

BANDS = 4


class Net(nn.Module):
    """A forward function, the modules it uses, and things to remember: a count, a list, a buffer."""

    def __init__(self, function: Callable[[Any, Tensor], Any], **modules: nn.Module) -> None:
        super().__init__()
        self.function = function
        for name, module in modules.items():
            self.add_module(name, module)
        self.calls = 0
        self.seen: list[Any] = []
        self.known: dict[Any, Any] = {}
        self.last: Any = None
        self.register_buffer("mean", torch.zeros(1, BANDS, 1, 1))
        self.register_buffer("table", torch.linspace(0, 1, BANDS * 4096 * 3).view(1, BANDS, 64, 192))
        self.weight = nn.Parameter(torch.linspace(-1, 1, BANDS * BANDS).view(BANDS, BANDS))

    def forward(self, x: Tensor) -> Any:
        return self.function(self, x)


def conv(kernel: int = 3, out: int = BANDS, **options: Any) -> nn.Conv2d:
    torch.manual_seed(kernel)
    options.setdefault("padding", kernel // 2)
    return nn.Conv2d(BANDS, out, kernel, **options)
