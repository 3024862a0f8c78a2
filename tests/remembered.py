"""What is found out about a network without computing, found once for all tests that ask alike: it takes seconds.

Halos and steps on shapes are remembered, of networks of libraries and of outsize, not of those that tests make up.
What is asked with anything that cannot be told apart by its text is found again.
"""

from __future__ import annotations

import hashlib
import os
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from functools import partial
from pathlib import Path
from types import FunctionType
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

from outsize.measure import facts, tracing

_KNOWN = ("torch", "torchvision", "timm", "segmentation_models_pytorch", "outsize")
_PLAIN = (bool, int, float, str, bytes, type(None), torch.dtype, torch.device)

Find = Callable[..., Any]


@contextmanager
def remembering() -> Iterator[None]:
    """Inside the block planning remembers halos and followed steps.

    They lie in a folder of the tests, so that all their processes know what others have found.
    """
    derive, trace_step = remembered(facts.derive), remembered(facts.trace_step)
    with (
        mock.patch.object(facts, "derive", derive),
        mock.patch.object(facts, "trace_step", trace_step),
        mock.patch.object(tracing, "trace_step", trace_step),
    ):
        yield


def remembered(find: Find) -> Find:
    """Return `find` with a memory."""
    folder, found = Path(os.environ["OUTSIZE_TESTS"], "found"), dict[str, Any]()
    folder.mkdir(exist_ok=True)

    def recall_or_find(*args: Any, **how: Any) -> Any:
        try:
            asked = repr((find.__qualname__, _about(args), _about(how)))
        except _UnlikeError:
            return find(*args, **how)
        name = hashlib.sha256(asked.encode()).hexdigest()
        if name not in found:
            path = folder / name
            if not path.exists():
                written = path.with_suffix(f".{os.getpid()}")
                written.write_bytes(pickle.dumps(find(*args, **how)))
                written.replace(path)
            found[name] = pickle.loads(path.read_bytes())
        return found[name]

    return recall_or_find


class _UnlikeError(Exception):
    """Nothing tells whether it is the same as another."""


def _about(value: Any) -> Any:
    """Return what tells a value from all others that would give another answer."""
    if isinstance(value, _PLAIN):
        return repr(value)
    if isinstance(value, Tensor):
        return _about_tensor(value), value.untyped_storage().nbytes(), value.storage_offset()
    if isinstance(value, (tuple, list)):
        return [_about(each) for each in value]
    if isinstance(value, dict):
        return [(_about(key), _about(value[key])) for key in sorted(value)]
    if isinstance(value, partial):
        return _about(value.func), _about(value.args), _about(value.keywords)
    return _about_own(value)


def _about_own(value: Any) -> Any:
    """Return what tells a network, a function, a class or a record of libraries or of outsize from others."""
    if not _is_known(value if isinstance(value, (FunctionType, type)) else type(value)):
        raise _UnlikeError
    if isinstance(value, nn.Module):
        return _about_network(value)
    if isinstance(value, type) or (isinstance(value, FunctionType) and "<locals>" not in value.__qualname__):
        return value.__module__, value.__qualname__
    if isinstance(value, FunctionType):
        inside = [each.cell_contents for each in value.__closure__ or ()]
        return value.__module__, value.__qualname__, _about(inside), _about(value.__defaults__)
    if is_dataclass(value):
        return type(value).__qualname__, [_about(getattr(value, each.name)) for each in fields(value)]
    raise _UnlikeError


def _is_known(value: Any) -> bool:
    return str(value.__module__).partition(".")[0] in _KNOWN


def _about_network(model: nn.Module) -> Any:
    """Return what the graph of a network hangs on: its layers with all their numbers, and shapes of its tensors."""
    if not all(_is_known(type(each)) for each in model.modules()):
        raise _UnlikeError
    layers = [(name, type(each), _settings(each)) for name, each in model.named_modules()]
    hooks = [len(each._forward_hooks) + len(each._forward_pre_hooks) for each in model.modules()]
    tensors = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    return repr(model), layers, hooks, [(name, _about_tensor(each)) for name, each in tensors]


def _settings(layer: nn.Module) -> list[tuple[str, str]]:
    """Return all that was set on a layer; torch's own dicts of tensors, layers and hooks are private."""
    kinds = (*_PLAIN, tuple, list, dict, set)
    plain = [(name, value) for name, value in vars(layer).items() if isinstance(value, kinds)]
    return [
        (name, repr(value)) for name, value in plain if not (name.startswith("_") and isinstance(value, dict))
    ]


def _about_tensor(tensor: Tensor) -> Any:
    return tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.device, tensor.requires_grad
