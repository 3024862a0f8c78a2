"""Refuses modules whose weights or code cannot be looked at, in words of what to do about it."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from outsize.errors import ModelError, explain


def refuse_unready(model: nn.Module) -> None:
    """Refuse a module without weights of its own, and one that has become a program of torch's."""
    for problem, found, need, remedy in _speaks_against(model):
        raise ModelError(explain(problem, found, need, remedy))


def _speaks_against(model: nn.Module) -> Iterator[tuple[str, str, str, str]]:
    if isinstance(model, torch.jit.ScriptModule):
        need = "the nn.Module that it was made from"
        yield "what a TorchScript program looks at cannot be read", type(model).__name__, need, "give that"
    for name, each in (*model.named_parameters(), *model.named_buffers()):
        if is_lazy(each):
            need = "layers that know their shapes"
            yield "the model is not made yet", f"{name!r} without a shape", need, "call it once on a picture"
        elif each.device.type == "meta":
            need, remedy = "weights in memory", "load them (to_empty, load_state_dict)"
            yield "the model's weights hold no numbers", f"{name!r} on the device meta", need, remedy
        elif _is_of_inference(each):
            need, remedy = "tensors that a graph may be read with", "make the model outside of it"
            yield "the model was made under torch.inference_mode", f"{name!r}", need, remedy


def _is_of_inference(tensor: Tensor) -> bool:
    return tensor.is_inference() and not torch.is_inference_mode_enabled()
