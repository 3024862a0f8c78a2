"""Keeps weights, gradients and the optimizer's state in host memory; blocks come to the device one after another.

What torch ships does it: FSDP2 (https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html) with its CPU
offload, for a world of one process. Each block of the plan is brought before its forward and before its backward, its
gradients leave when they are complete, and the optimizer runs on the host.

    host     all weights, their gradients, the optimizer's state
    device   . block 0 .|. block 1 .|. block 2 .|. block 2 .|. block 1 .|. block 0 .   vectors (biases, norms), buffers

Vectors stay on the device: they are next to nothing, and what is recomputed in backward (a batch norm of one block, for
another block) needs them when the block they belong to is not there.
"""

from __future__ import annotations

import atexit
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Shard

from outsize.errors import PlanError, explain
from outsize.plan.plan import Offload

# those whose forward was called: before that FSDP has no state to reset
_RUN: weakref.WeakSet[nn.Module] = weakref.WeakSet()


def offload(model: nn.Module, setting: Offload, device: torch.device, *, bf16: bool = False) -> nn.Module:
    """Leave a model's weights on the host, in place, and bring its blocks to a device when they run.

    Parameters keep their names and are new objects: an optimizer is made after this. A state dict holds plain tensors,
    as ever, and plain ones can be loaded. `bf16` is that of autocast, which would else hold a copy of all weights.
    """
    if is_offloaded(model):
        return model
    missing = [path for path in setting.blocks if path not in dict(model.named_modules())]
    if missing:
        need, remedy = "the paths of modules", "plan again for this model"
        raise PlanError(explain("blocks of the plan are not in the model", missing[0], need, remedy))
    with _on(device):
        mesh = _mesh_of_one(device)
        kept = {each for each in model.parameters() if each.ndim <= 1}
        settings: dict[str, Any] = {
            "mesh": mesh,
            "offload_policy": CPUOffloadPolicy(pin_memory=device.type == "cuda"),
            "mp_policy": _precision(bf16),
            "ignored_params": kept,
        }
        # innermost first, as FSDP wants it; one after another, so that no two are on the device at once
        for path in sorted(setting.blocks, key=lambda each: each.count("."), reverse=True):
            fully_shard(_contiguous(model.get_submodule(path)), **settings)
        fully_shard(_contiguous(model), **settings)
        with torch.no_grad():
            for each in (*kept, *model.buffers()):
                each.data = each.data.to(device)
        # A tensor that is first made under inference mode is of no use outside of it, and what follows may be either.
        for module in _units(model):
            module.unshard()
            module.reshard()
    model.register_forward_pre_hook(_note_run)
    model.register_forward_hook(_leave_device)
    model.register_state_dict_post_hook(_in_full)
    model.register_load_state_dict_pre_hook(_as_held)
    return model


def is_offloaded(model: nn.Module) -> bool:
    """Whether the weights of a model are on the host already."""
    return isinstance(model, FSDPModule)


def can_begin_anew(model: nn.Module) -> bool:
    """Whether a step that an error ended can be repeated: it leaves FSDP in the middle, where an older one stays."""
    return not is_offloaded(model) or hasattr(model, "reset_iter_state")


def begin_anew(model: nn.Module) -> None:
    """Forget a step that an error ended, its gradients too, where weights are on the host."""
    if model in _RUN and can_begin_anew(model):
        model.reset_iter_state()  # type: ignore[operator]


def compute_device(model: nn.Module) -> torch.device:
    """Return where a model computes, wherever its weights are."""
    tensors = (*model.parameters(), *model.buffers())
    mesh = next((each.device_mesh for each in tensors if isinstance(each, DTensor)), None)
    there = next((each.device for each in tensors if not isinstance(each, DTensor)), None)
    if there is not None or mesh is None:
        return there or torch.device("cpu")
    index = torch.cuda.current_device() if mesh.device_type == "cuda" else 0
    return torch.device(mesh.device_type, index)


def weights_of(model: nn.Module) -> dict[str, int]:
    """Return the bytes by name of the weights that can be on the host, as the planner asks for them."""
    return {name: each.nbytes for name, each in model.named_parameters() if each.ndim > 1}


def in_full(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return plain tensors, as a file takes them: of an optimizer, whose state is held as the weights are."""
    return {name: _plain(value) for name, value in tensors.items()}


def as_held(model: nn.Module, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the optimizer's tensors from a file in the form in which the weights of the model are held."""
    mesh = next((each.device_mesh for each in model.parameters() if isinstance(each, DTensor)), None)
    if mesh is None:
        return dict(tensors)
    return {name: _held(value, mesh) if value.ndim > 1 else value for name, value in tensors.items()}


def _note_run(model: nn.Module, _: Any) -> None:
    _RUN.add(model)


def _leave_device(model: nn.Module, _: Any, __: Any) -> None:
    """Give the device's memory back where no backward will do it; who asks for parameters then gets those that last."""
    if not torch.is_grad_enabled():
        assert isinstance(model, FSDPModule)
        model.reshard()


def _in_full(_: nn.Module, tensors: dict[str, Any], prefix: str, __: Any) -> None:
    for name, value in tensors.items():
        if name.startswith(prefix) and isinstance(value, DTensor):
            tensors[name] = value.full_tensor()


def _as_held(module: nn.Module, tensors: dict[str, Any], prefix: str, *_: Any) -> None:
    for name, own in module.named_parameters():
        value = tensors.get(prefix + name)
        if isinstance(own, DTensor) and value is not None and not isinstance(value, DTensor):
            tensors[prefix + name] = _held(value, own.device_mesh)


def _plain(value: Tensor) -> Tensor:
    return value.full_tensor() if isinstance(value, DTensor) else value


def _held(value: Tensor, mesh: DeviceMesh) -> Tensor:
    return DTensor.from_local(value.cpu().contiguous(), mesh, [Shard(0)], run_check=False)


def _units(model: nn.Module) -> list[FSDPModule]:
    return [each for each in model.modules() if isinstance(each, FSDPModule)]


def _contiguous(module: nn.Module) -> nn.Module:
    """Undo channels last in weights: FSDP takes none that are laid out otherwise."""
    with torch.no_grad():
        for each in module.parameters():
            if not isinstance(each, DTensor) and not each.is_contiguous():
                each.data = each.data.contiguous()
    return module


def _precision(bf16: bool) -> MixedPrecisionPolicy:
    """Bring weights in bf16 where autocast would cast them: it would keep its copies until backward."""
    if not bf16:
        return MixedPrecisionPolicy()
    return MixedPrecisionPolicy(torch.bfloat16, torch.float32, cast_forward_inputs=False)


@contextmanager
def _on(device: torch.device) -> Iterator[None]:
    """Make a GPU the current one: FSDP computes there."""
    if device.type != "cuda":
        yield
        return
    with torch.cuda.device(device):
        yield


def _mesh_of_one(device: torch.device) -> DeviceMesh:
    """Return a world of one process; nothing is sent anywhere, and nobody listens."""
    if not dist.is_initialized():
        backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        store = dist.HashStore()  # type: ignore[attr-defined]
        dist.init_process_group(backend, store=store, rank=0, world_size=1)
        atexit.register(_leave)
    if dist.get_world_size() != 1:
        need, remedy = "one process", "give each process a GPU that holds the weights, or train with one"
        found = f"{dist.get_world_size()} processes"
        raise PlanError(
            explain("weights on the host and several processes do not go together yet", found, need, remedy)
        )
    return init_device_mesh(device.type, (1,))


def _leave() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()
