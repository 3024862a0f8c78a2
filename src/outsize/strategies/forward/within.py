"""Runs every call of a model as a plan says, inside of a block; the model stays as it is written."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial, wraps
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn
from torch._C._dynamo.eval_frame import get_eval_frame_callback
from torch.nn.modules.module import register_module_forward_pre_hook

from outsize.errors import PlanError, explain
from outsize.measure.tensors import Shapes, format_shapes, num_values, shapes_of
from outsize.plan.plan import Plan, Recompute
from outsize.strategies.blocks import checkpointed
from outsize.strategies.compat import takes_no_hooks
from outsize.strategies.forward.owned import Owned, RunOwned
from outsize.strategies.forward.saving_tensors import unmet_by, waits_of
from outsize.strategies.kernels import made_later
from outsize.strategies.replaced import forward_of, run_instead
from outsize.strategies.saved import SavedTensors


class Within:
    """A block in which every call of the model runs as the plan says; outside of it, the model is as it was."""

    def __init__(
        self,
        model: nn.Module,
        plan: Plan,
        recorded: str | None,
        planned: Sequence[Shapes] = (),
        owned: Owned | None = None,
    ) -> None:
        self.plan = plan
        self._owned = owned
        self._run_owned: RunOwned | None = None  # inside the block
        self.recorded = recorded  # why facts are those of one real step; None: they were followed on shapes
        self._model = model
        # what the model was given in the step that was planned: the largest call, and how many there were
        self._planned = max(planned, key=num_values, default=None)
        self._num_calls, self._num_called = max(1, len(planned)), 0
        self._warned: set[str] = set()
        self._is_running = False  # a call of the model
        self._num_seen = 0
        self._went_through = False  # the latest call of the model
        self._saved: SavedTensors | None = None
        self._block = ExitStack()
        self._call = ExitStack()

    def __enter__(self) -> Within:
        refuse_inside_another(self._model)
        with ExitStack() as undo:  # where something of it fails
            undo.callback(self._block.close)
            self._enter()
            undo.pop_all()
        return self

    def step(self, batch: Any, *, weight: float = 1.0) -> Tensor:
        """Run forward, loss and backward of a batch as planned, and return the loss.

        Gradients are added to those that are there. Of several batches for one step of the optimizer each has its
        `weight`: what its loss is multiplied by before backward.
        """
        if self._run_owned is not None:
            return self._run_owned(batch, weight)
        problem = "fit.step cannot run"
        if self._owned is None:
            found, needed = "outsize.within without a loss", "what backward begins at"
            remedy = "give loss=lambda model, batch: ..., or call the model and backward yourself"
        else:
            found, needed = "a call outside of the block", "the plan in force"
            remedy = "call it inside of: with outsize.within(...) as fit"
        raise PlanError(explain(problem, found, needed, remedy))

    def _enter(self) -> None:
        _ACTIVE.append(self._model)
        self._block.callback(_ACTIVE.remove, self._model)
        if self.plan.fuse is not None:
            self._block.enter_context(made_later(self._model, self.plan.fuse.later))
        if self.plan.recompute is not None or self.plan.swap is not None:
            self._saved = self._saving()
            self._block.callback(register_module_forward_pre_hook(self._notice()).remove)
            self._block.enter_context(_uncompiled(self._model))

        if self._owned is not None:
            shuttle = None if self._saved is None else self._saved.shuttle
            tell = partial(self._tell, "capture", stacklevel=3)
            self._run_owned = self._owned.prepared(self._model, tell, shuttle)

        # functions, for a copy of the model that is made meanwhile has the same ones, and not copies of all this
        def begin(module: nn.Module, _: Any) -> None:
            if module is self._model:
                if self._saved is not None and get_eval_frame_callback():
                    self._tell("compiled", _of_compiled(), stacklevel=2)
                self._begin()

        def went_through(module: nn.Module, _: Any, __: Any) -> None:
            self._went_through = self._went_through or module is self._model

        def end(module: nn.Module, args: Any, kwargs: Any, _: Any) -> None:
            if module is self._model:
                self._end(shapes_of((args, kwargs)))

        # outside of the hooks that tell which module runs, which were set before
        self._block.callback(self._model.register_forward_pre_hook(begin, prepend=True).remove)
        self._block.callback(self._model.register_forward_hook(went_through).remove)
        ended = self._model.register_forward_hook(end, always_call=True, with_kwargs=True)
        self._block.callback(ended.remove)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None and self._saved is not None and not self._num_seen:
            self._tell("other calls", _of_other_calls("no call of the model"), stacklevel=3)
        self._call.close()
        self._block.close()
        self._saved = self._run_owned = None

    def _notice(self) -> Callable[[nn.Module, Any], None]:
        """Return a hook that sees parts of the model called by themselves."""
        paths = {id(module): path for path, module in self._model.named_modules()}

        def notice(module: nn.Module, _: Any) -> None:
            path = paths.get(id(module))
            # a block that runs again, ours or the caller's, does so in backward
            if path and not self._is_running and torch.is_grad_enabled() and not _is_in_backward():
                self._num_seen += 1
                self._tell("other calls", _of_other_calls(f"a call of '{path}'"), stacklevel=5)

        return notice

    def _tell(self, about: str, text: str, *, stacklevel: int) -> None:
        if about not in self._warned:
            self._warned.add(about)
            warnings.warn(text, stacklevel=stacklevel + 1)

    def _saving(self) -> SavedTensors:
        recompute = self.plan.recompute or Recompute()
        self._block.enter_context(checkpointed(self._model, recompute.blocks))
        keys, costly = frozenset(recompute.saved), frozenset(recompute.costly)
        saved = SavedTensors(self._model, keys, self.plan.swap, costly=costly, waits=waits_of(recompute))
        self._block.enter_context(saved)
        self._block.callback(saved.close)
        return saved

    def _begin(self) -> None:
        self._went_through, self._is_running = False, True
        self._num_seen += 1
        if self._num_called == 0:  # else it is one more call of the same step, as a loss of pairs has them
            self._call.close()
            if self._saved is not None and takes_no_hooks():
                self._tell("transforms", _of_transforms(), stacklevel=3)
            elif self._saved is not None:
                self._call.enter_context(self._saved.forward())

    def _end(self, given: Shapes) -> None:
        self._is_running = False
        error = None if self._went_through else sys.exception()
        if error is not None:  # no example of what the model saves
            self._num_called = 0
            self._call.__exit__(type(error), error, error.__traceback__)
            if torch.is_grad_enabled() and isinstance(error, torch.OutOfMemoryError):
                self._tell_of_larger(given)
            return
        self._num_called += torch.is_grad_enabled()
        if 0 < self._num_called < self._num_calls:
            return
        self._num_called = 0
        self._call.close()
        if torch.is_grad_enabled():
            self._tell_of_larger(given)
            self._tell_of_unmet()

    def _tell_of_larger(self, found: Shapes) -> None:
        if self._planned is None or num_values(found) <= num_values(self._planned):
            return
        text = explain(
            "the model is given more than was planned for",
            format_shapes(found),
            f"at most {format_shapes(self._planned)} as in the example",
            "expect more memory than planned, or plan again with the largest inputs as the example",
        )
        self._tell("larger", text, stacklevel=3)

    def _tell_of_unmet(self) -> None:
        stats = None if self._saved is None else self._saved.stats
        if self._saved is None or stats is None or "unmet" in self._warned:
            return
        if stats.num_kept + stats.num_recomputed == 0:  # as of a model that is frozen for a while
            return
        for text in unmet_by(self._saved, self.plan.recompute or Recompute(), self.plan.swap):
            self._warned.add("unmet")
            warnings.warn(text, stacklevel=3)


_ACTIVE: list[nn.Module] = []  # models that are inside of such a block now


def refuse_inside_another(model: nn.Module) -> None:
    """Refuse a model of which a part is inside of another block: both would decide about the same tensors."""
    own = set(map(id, model.modules()))
    if any(id(each) in own for other in _ACTIVE for each in other.modules()):
        problem, found = (
            "outsize.within is used inside of outsize.within",
            f"a {type(model).__name__} in both",
        )
        needed, remedy = "one of them at a time", "leave the outer block first, or plan for both together"
        raise PlanError(explain(problem, found, needed, remedy))


@contextmanager
def _uncompiled(model: nn.Module) -> Iterator[None]:
    """Have a model run as it is written inside the block, also where a compiled one is called that was made of it."""
    once = forward_of(model)

    @torch._dynamo.disable  # type: ignore[untyped-decorator]
    @wraps(type(model).forward)
    def run(model: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return once(model, *args, **kwargs)

    with run_instead(model, run):
        yield


def _of_compiled() -> str:
    problem, found = "the model runs uncompiled in this block", "a call by torch.compile of all of it"
    needed = "a plan is carried out where Python runs"
    return explain(problem, found, needed, "call the model itself, or compile parts of it by part.compile()")


def _of_other_calls(found: str) -> str:
    problem, needed = "the plan is not carried out", "calls of the model itself, as model(images)"
    remedy = "call it, and not forward or parts of it, or expect more memory than planned"
    return explain(problem, found, needed, remedy)


def _of_transforms() -> str:
    problem = "the plan is not carried out"
    found = "a call inside of torch.func, forward-mode derivatives or disable_saved_tensors_hooks"
    needed, remedy = "backward by autograd alone", "expect the memory of a plain step, whose gradients it has"
    return explain(problem, found, needed, remedy)


def _is_in_backward() -> bool:
    return torch._C._current_graph_task_id() != -1
