"""How much memory one window of a model takes, by counting the storages that live at once."""

from __future__ import annotations

import copy
import weakref
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from outsize.plan.facts import WindowFacts

OPTIMIZER_TENSORS = {"sgd": 1, "adamw": 2}  # state tensors beside each parameter

_TRAINED_AT_ONCE = 2


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of storages made inside the block and still alive, and their largest sum.

    Works on `meta` tensors, which have sizes and no memory: a window of any size is counted in no time.
    Storages are known by a weak reference to the storage itself, never by address, which is soon reused.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now_bytes = 0
        self.peak_bytes: int = 0
        self._alive: dict[int, weakref.ref[Any]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        given = _storages((args, kwargs))
        for storage in _storages(result):
            # a view of a weight, or a weight changed in place, is nothing new
            if not any(storage is each for each in given):
                self._count(storage)
        return result

    def _count(self, storage: torch.UntypedStorage) -> None:
        key, size = id(storage), storage.nbytes()
        known = self._alive.get(key)
        if known is not None and known() is storage:
            return

        def forget(_: object) -> None:
            self.now_bytes -= size
            self._alive.pop(key, None)

        self._alive[key] = weakref.ref(storage, forget)
        self.now_bytes += size
        self.peak_bytes = max(self.peak_bytes, self.now_bytes)


def _storages(values: Any) -> list[torch.UntypedStorage]:
    return [leaf.untyped_storage() for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]


def window_facts(
    model: nn.Module, in_channels: int, *, window_px: int, optimizer: str, device: torch.device, bf16: bool
) -> WindowFacts:
    """Count windows through the model: one forward, and two forward and backward.

    Two, because batch norm behind a pooling over the whole window has else one value to train on, and refuses.
    """
    weights_bytes = _weights_bytes(model)
    trained = sum(p.numel() * p.element_size() for p in model.parameters() if p.requires_grad)
    peak = partial(_peak_bytes, model, in_channels, window_px, bf16=bf16, device=device)
    predict_bytes = peak(backward=False)
    # a model that is frozen altogether has nothing to go backward for
    train_bytes = peak(backward=True) if trained else 0
    num_px = window_px**2
    # backward leaves a gradient for every weight behind, which does not grow with the window
    return WindowFacts(
        window_px=window_px,
        weights_bytes=weights_bytes,
        predict_bytes_per_px=predict_bytes / num_px,
        train_bytes_per_px=max((train_bytes - trained) / _TRAINED_AT_ONCE, predict_bytes) / num_px,
        optimizer_bytes=trained * (1 + OPTIMIZER_TENSORS[optimizer]),
        source="measured" if device.type == "cuda" else "traced",
    )


def _peak_bytes(
    model: nn.Module, in_channels: int, window_px: int, *, backward: bool, bf16: bool, device: torch.device
) -> int:
    shape = (_TRAINED_AT_ONCE if backward else 1, in_channels, window_px, window_px)
    if device.type == "cuda":
        return _peak_on_gpu(model, shape, backward=backward, bf16=bf16, device=device)
    ghost = copy.deepcopy(model).to("meta").train(backward)
    with LiveBytes() as live:
        # dtype and size of raw pixels, the normalised copy and the validity mask come with the window
        _one_pass(ghost, torch.zeros(shape, device="meta"), backward=backward, bf16=False)
    return int(live.peak_bytes)


def _peak_on_gpu(
    model: nn.Module, shape: tuple[int, ...], *, backward: bool, bf16: bool, device: torch.device
) -> int:
    window = torch.randn(shape, device=device).contiguous(memory_format=torch.channels_last)
    twin = copy.deepcopy(model).to(device).to(memory_format=torch.channels_last).train(backward)
    run = partial(_one_pass, twin, window, backward=backward, bf16=bf16)
    run()  # the first pass allocates what later ones reuse: cuDNN handles, workspaces
    twin.zero_grad(set_to_none=True)
    torch.cuda.synchronize(device)
    before_bytes = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    run()
    torch.cuda.synchronize(device)
    return int(torch.cuda.max_memory_allocated(device) - before_bytes + window.nbytes)


def _one_pass(model: nn.Module, window: Tensor, *, backward: bool, bf16: bool) -> None:
    with (
        torch.set_grad_enabled(backward),
        torch.autocast("cuda", torch.bfloat16, enabled=bf16),
    ):
        output = model(window)
        if backward:
            labels = torch.zeros(output.shape[:1] + output.shape[2:], dtype=torch.long, device=output.device)
            loss = nn.functional.cross_entropy(output.float(), labels, reduction="sum")
    if backward:
        loss.backward()
    else:
        output.softmax(1).max(1)


def _weights_bytes(model: nn.Module) -> int:
    tensors = [*model.parameters(), *model.buffers()]
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
