"""Optimizers by name, and their state as plain tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor, nn

from outsize.strategies.elsewhere import is_here


def make_optimizer(
    model: nn.Module, name: str, *, lr: float, momentum: float, weight_decay: float
) -> torch.optim.Optimizer:
    """Build the optimizer of a phase over the parameters that train."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return optimizer_of(trained, name, lr=lr, momentum=momentum, weight_decay=weight_decay)


def optimizer_of(
    parameters: Iterable[nn.Parameter],
    name: str,
    *,
    lr: float,
    momentum: float,
    weight_decay: float,
    on_gpu: bool | None = None,
) -> torch.optim.Optimizer:
    """Build an optimizer by name; on a GPU its kernels take all weights at once, and no memory besides.

    `on_gpu` says so of weights that are shapes alone; None: they say it themselves.
    """
    listed = list(parameters)
    if on_gpu is None:
        on_gpu = bool(listed) and all(each.is_cuda for each in listed)
    fused = on_gpu or None
    if name == "sgd":
        return torch.optim.SGD(listed, lr=lr, momentum=momentum, weight_decay=weight_decay, fused=fused)
    return torch.optim.AdamW(listed, lr=lr, weight_decay=weight_decay, fused=fused)


def state_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Flatten the optimizer's state: "3.exp_avg" is entry exp_avg of parameter 3."""
    state = optimizer.state_dict()["state"]
    return {
        f"{index}.{key}": value
        for index, entries in state.items()
        for key, value in entries.items()
        if isinstance(value, Tensor)
    }


def load_state_tensors(
    optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor], kept: Callable[[Tensor], bool] = is_here
) -> None:
    """Put flattened state back, of weights whose state is `kept` on this rank."""
    state: dict[int, dict[str, Tensor]] = {}
    weights = [each for group in optimizer.param_groups for each in group["params"]]
    for name, value in tensors.items():
        index, _, key = name.partition(".")
        if not kept(weights[int(index)]):
            continue
        state.setdefault(int(index), {})[key] = value
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": state, "param_groups": groups})
    for parameter, entries in optimizer.state.items():
        for key, value in entries.items():
            # files know no memory formats, but fused kernels go over weights and state side by side
            if isinstance(value, Tensor) and value.shape == parameter.shape:
                entries[key] = torch.empty_like(parameter, dtype=value.dtype).copy_(value)
