"""Runs every call of a model as a plan says, inside of a block; the model stays as it is written."""

from __future__ import annotations

import warnings
from contextlib import ExitStack
from types import TracebackType
from typing import Any

import torch
from torch import nn

from outsize.plan.plan import Plan, Recompute
from outsize.strategies.blocks import checkpointed
from outsize.strategies.recompute import unmet_by, waits_of
from outsize.strategies.saved import SavedTensors


class Within:
    """A block in which every call of the model runs as the plan says; outside of it, the model is as it was."""

    def __init__(self, model: nn.Module, plan: Plan, recorded: str | None) -> None:
        self.plan = plan
        self.recorded = recorded  # why facts are those of one real step; None: they were followed on shapes
        self._model = model
        self._told = False
        self._block = ExitStack()
        self._call = ExitStack()

    def __enter__(self) -> Within:
        if self.plan.recompute is None and self.plan.swap is None:
            return self
        recompute, swap = self.plan.recompute or Recompute(), self.plan.swap
        self._block.enter_context(checkpointed(self._model, recompute.blocks))
        keys, dear = frozenset(recompute.saved), frozenset(recompute.dear)
        saved = SavedTensors(self._model, keys, swap, dear=dear, waits=waits_of(recompute))
        self._block.enter_context(saved)
        self._block.callback(saved.close)

        def begin(_: nn.Module, __: Any) -> None:
            self._call.close()
            self._call.enter_context(saved.forward())

        def end(_: nn.Module, __: Any, ___: Any) -> None:
            self._call.close()
            if not self._told and saved.stats is not None and torch.is_grad_enabled():
                self._told = True
                for text in unmet_by(saved, recompute, swap):
                    warnings.warn(text, stacklevel=2)

        # outside of the hooks that tell which module runs, which were set before
        self._block.callback(self._model.register_forward_pre_hook(begin, prepend=True).remove)
        self._block.callback(self._model.register_forward_hook(end, always_call=True).remove)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._call.close()
        self._block.close()
