"""Runs whole modules under torch's checkpoint: forward keeps their inputs alone, backward runs them again.

A block whose second run would be noticed, or would not be the same, keeps what it saves: one with hooks of others
inside, and one that was seen to give something else.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from types import MethodType
from typing import Any, cast
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._pytree import tree_map
from torch.utils.checkpoint import checkpoint

from outsize.errors import explain
from outsize.measure.tensors import tensors_in
from outsize.strategies.blocks.alike import Checks
from outsize.strategies.compat import takes_no_hooks
from outsize.strategies.find import find_module
from outsize.strategies.overwritten import changed
from outsize.strategies.replaced import forward_of, run_instead
from outsize.strategies.saved import Draws

Tell = Callable[[str], object]


@contextmanager
def checkpointed(
    model: nn.Module,
    paths: Collection[str],
    tell: Tell = warnings.warn,
    checks: dict[str, Checks] | None = None,
) -> Iterator[None]:
    """Inside the block the named modules keep nothing but their inputs for backward.

    No module is wrapped, so no parameter changes its name, and afterwards the model is as it was. `checks` has what is
    known of the modules from one block of this kind to the next.
    """
    checks = {} if checks is None else checks
    blocks = {path: find_module(model, path, "recomputed as a whole") for path in paths}
    runs = {
        path: _rerun(path, block, checks.setdefault(path, Checks(path)), tell)
        for path, block in blocks.items()
    }
    with ExitStack() as stack:
        for path, block in blocks.items():
            stack.enter_context(run_instead(block, runs[path]))
        yield


def _rerun(path: str, block: nn.Module, checks: Checks, tell: Tell) -> Callable[..., Any]:
    """Return the forward of a module under torch's checkpoint: what it runs now."""
    once, is_replaced = forward_of(block), "forward" in vars(block)
    compiled: bool | None = None

    def run(block: nn.Module, *args: Any, **kwargs: Any) -> Any:
        nonlocal compiled
        if not checks.keeps and (hooked := hooked_in(block)) is not None:
            checks.keeps = True
            tell(_of_hooks(path, hooked))
        if checks.keeps or not torch.is_grad_enabled() or takes_no_hooks():
            return once(block, *args, **kwargs)
        if compiled is None:
            compiled = is_replaced or any(map(_is_compiled, block.modules()))
        given, buffers = _Given(path, (args, kwargs)), Buffers(block, compiled=compiled)
        call = checks.begin(besides=buffers.unread)

        def again(*_: Tensor) -> Any:
            args, kwargs = given.take()
            return once(block, *args, **kwargs)

        def contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
            if draws is None:
                return call.first(), _Anew(call.second, buffers.set_aside)
            return draws.kept(), _Anew(buffers.set_aside, draws.given)

        # Torch looks at what it is given for the devices whose random numbers and autocast it has to remember.
        tensors = tensors_in((args, kwargs))
        devices = {each.device: each for each in tensors or block.parameters()}
        empty = [each.detach().new_empty(0) for each in devices.values()]
        with _chance(path, block, list(devices)) as (puts_back, draws):
            return checkpoint(
                again, *empty, use_reentrant=False, preserve_rng_state=puts_back, context_fn=contexts
            )

    return run


def _is_compiled(module: nn.Module) -> bool:
    """Whether a module is compiled, or another function runs in place of its forward, which may be."""
    own = vars(module).get("forward")
    return module._compiled_call_impl is not None or (own is not None and not isinstance(own, MethodType))


def hooked_in(block: nn.Module) -> str | None:
    """Return the path of a module inside of a block that has a hook which others have set: it would fire twice."""
    return next((path for path in others_hooks(block) if path), None)


def others_hooks(model: nn.Module) -> Iterator[str]:
    """Yield the paths of modules that have a hook around forward which is none of torch's and none of ours."""
    for path, module in model.named_modules():
        if module._forward_pre_hooks or module._forward_hooks:
            hooks = (*module._forward_pre_hooks.values(), *module._forward_hooks.values())
            if any(map(_is_others, hooks)):
                yield path


def _is_others(hook: Any) -> bool:
    """Whether a hook is none of torch's own, as of weight norm, and none of ours."""
    hook = getattr(hook, "func", hook)  # of a partial
    owner = getattr(hook, "__module__", None) or type(hook).__module__
    return str(owner).partition(".")[0] not in ("torch", "outsize")


def _of_hooks(path: str, hooked: str) -> str:
    return explain(
        f"module '{path}' is not run again as planned",
        f"a hook on '{hooked}' in it, which would fire twice",
        "no hooks inside",
        "expect more memory than planned, or set hooks before you plan",
    )


_DRAWS: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()  # of blocks that ran on a GPU


@contextmanager
def _chance(
    path: str, block: nn.Module, devices: Sequence[torch.device]
) -> Iterator[tuple[bool, Draws | None]]:
    """Say whether the state of random numbers is put back for a second run, or what keeps those that were drawn.

    A recorded step does not tell that state, so there they are kept; a block that drew nothing when it ran before
    needs neither, and one that drew where nobody could see it is not recorded.
    """
    gpus = [torch.cuda.default_generators[each.index] for each in devices if each.type == "cuda"]
    if not gpus:
        yield True, None
        return
    if torch.cuda.is_current_stream_capturing():
        draws = Draws() if _DRAWS.get(block, True) else None
        yield False, draws
        if draws is not None and draws.is_empty and _DRAWS.get(block):
            raise RuntimeError(
                f"{path} is run again, and draws random numbers by a kernel of its own: not twice alike"
            )
        return
    before = [each.get_offset() for each in gpus]
    yield True, None
    _DRAWS[block] = _DRAWS.get(block, False) or before != [each.get_offset() for each in gpus]


class _Anew(AbstractContextManager[None]):
    """Contexts that can be entered again and again, once for each backward: torch asks for them once."""

    def __init__(self, *makers: Callable[[], AbstractContextManager[None]]) -> None:
        self._makers = makers
        self._inside = ExitStack()

    def __enter__(self) -> None:
        for make in self._makers:
            self._inside.enter_context(make())

    def __exit__(self, *raised: Any) -> bool | None:
        return self._inside.__exit__(*raised)


class _Given:
    """What goes into a block: there as it is for the first run, and for the second as autograd has saved it.

    Saved, and not just held: so the hooks that decide what becomes of saved tensors decide about these, too. What has
    no gradient cannot be saved and is held; where the block changes it in place, a second run would begin with that.
    """

    def __init__(self, path: str, tree: Any) -> None:
        self._first: Any = tree  # with the caller's own lists and dicts, which the block may fill
        # in lists and dicts as they are now: filled further they would be another input the second time
        self._kept: Any = tree_map(_keep, tree)
        self._path = path
        held = tensors_in(self._kept)
        self._held = [(each, each._version) for each in held]

    def take(self) -> Any:
        """Return it; the first time what was given, and nothing of that is held any longer."""
        if self._first is not None:
            first, self._first = self._first, None
            return first
        for tensor, version in self._held:
            if tensor._version != version:
                raise changed(self._path, version, tensor._version)
        return tree_map(lambda each: each.take() if isinstance(each, _Kept) else each, self._kept)


class _Kept:
    """One tensor in the care of autograd."""

    def __init__(self, tensor: Tensor) -> None:
        self._output: Any = _Keep.apply(tensor)  # with it goes what was saved for it

    def take(self) -> Tensor:
        (tensor,) = self._output.grad_fn.saved_tensors
        return cast(Tensor, tensor)


class _Keep(torch.autograd.Function):
    """Saves a tensor, and is no part of what leads to a loss."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        ctx.save_for_backward(tensor)
        return tensor.new_empty(0)

    @staticmethod
    def backward(*_: Any) -> None:
        raise AssertionError("nothing depends on it")


def _keep(each: Any) -> Any:
    is_saved = isinstance(each, Tensor) and each.requires_grad and torch.is_grad_enabled()
    return _Kept(each) if is_saved else each


class Buffers:
    """The buffers of a block as they were before its first run.

    Batch norm writes its own in training and does not read them: those are not copied beforehand. A compiled one saves
    what it writes: there all are.
    """

    def __init__(self, block: nn.Module, *, compiled: bool = False) -> None:
        self._block, self._compiled = block, compiled
        copy = _Copies()
        # by their place: a module may have put another in it when it runs again
        self._read = {
            (module, name): copy(buffer)
            for module in block.modules()
            if compiled or not isinstance(module, _BatchNorm)
            for name, buffer in module._buffers.items()
        }

    @property
    def unread(self) -> frozenset[int]:
        """The ids of the storages of those that are written and not read."""
        if self._compiled:
            return frozenset()
        norms = (each for each in self._block.modules() if isinstance(each, _BatchNorm))
        buffers = (buffer for each in norms for buffer in each._buffers.values() if buffer is not None)
        return frozenset(id(buffer.untyped_storage()) for buffer in buffers)

    @contextmanager
    def set_aside(self) -> Iterator[None]:
        """Give the second run copies of all buffers: batch norm would else count the batch twice.

        Not put back by copying: that would count as a change in place of a buffer that autograd has saved.
        """
        held = [
            (each, name, buffer) for each in self._block.modules() for name, buffer in each._buffers.items()
        ]
        copy = _Copies()
        for module, name, buffer in held:
            module._buffers[name] = copy(self._read.get((module, name), buffer))
        try:
            yield
        finally:
            for module, name, buffer in held:
                module._buffers[name] = buffer


class _Copies:
    """Copies buffers; those of several modules that are one stay one."""

    def __init__(self) -> None:
        self._made: dict[int, tuple[Tensor, Tensor]] = {}

    def __call__(self, buffer: Tensor | None) -> Tensor | None:
        if buffer is None:
            return None
        return self._made.setdefault(id(buffer), (buffer, buffer.detach().clone()))[1]
