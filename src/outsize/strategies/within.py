"""Runs every call of a model as a plan says, inside of a block; the model stays as it is written."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Any

import torch
from torch import nn

from outsize.errors import explain
from outsize.measure.tensors import Shapes, format_shapes, num_values, shapes_of
from outsize.plan.plan import Plan, Recompute
from outsize.strategies.blocks import checkpointed
from outsize.strategies.recompute import unmet_by, waits_of
from outsize.strategies.saved import SavedTensors


class Within:
    """A block in which every call of the model runs as the plan says; outside of it, the model is as it was."""

    def __init__(
        self, model: nn.Module, plan: Plan, recorded: str | None, planned: Sequence[Shapes] = ()
    ) -> None:
        self.plan = plan
        self.recorded = recorded  # why facts are those of one real step; None: they were followed on shapes
        self._model = model
        # what the model was given in the step that was planned: the largest call, and how many there were
        self._planned = max(planned, key=num_values, default=None)
        self._num_calls, self._num_called = max(1, len(planned)), 0
        self._told_larger = self._told_unmet = False
        self._went_through = False  # the latest call of the model
        self._saved: SavedTensors | None = None
        self._block = ExitStack()
        self._call = ExitStack()

    def __enter__(self) -> Within:
        if self.plan.recompute is not None or self.plan.swap is not None:
            self._saved = self._saving()

        # functions, for a copy of the model that is made meanwhile has the same ones, and not copies of all this
        def begin(module: nn.Module, _: Any) -> None:
            if module is self._model:
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
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._call.close()
        self._block.close()
        self._saved = None

    def _saving(self) -> SavedTensors:
        recompute = self.plan.recompute or Recompute()
        self._block.enter_context(checkpointed(self._model, recompute.blocks))
        keys, dear = frozenset(recompute.saved), frozenset(recompute.dear)
        saved = SavedTensors(self._model, keys, self.plan.swap, dear=dear, waits=waits_of(recompute))
        self._block.enter_context(saved)
        self._block.callback(saved.close)
        return saved

    def _begin(self) -> None:
        self._went_through = False
        if self._num_called == 0:  # else it is one more call of the same step, as a loss of pairs has them
            self._call.close()
            if self._saved is not None:
                self._call.enter_context(self._saved.forward())

    def _end(self, given: Shapes) -> None:
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
        if self._told_larger or self._planned is None or num_values(found) <= num_values(self._planned):
            return
        self._told_larger = True
        text = explain(
            "the model is given more than was planned for",
            format_shapes(found),
            f"at most {format_shapes(self._planned)} as in the example",
            "expect more memory than planned, or plan again with the largest inputs as the example",
        )
        warnings.warn(text, stacklevel=3)

    def _tell_of_unmet(self) -> None:
        stats = None if self._saved is None else self._saved.stats
        if self._saved is None or stats is None or self._told_unmet:
            return
        if stats.num_kept + stats.num_recomputed == 0:  # as of a model that is frozen for a while
            return
        for text in unmet_by(self._saved, self.plan.recompute or Recompute(), self.plan.swap):
            self._told_unmet = True
            warnings.warn(text, stacklevel=3)
