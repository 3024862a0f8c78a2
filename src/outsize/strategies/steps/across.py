"""Refuses to call a step in parts exact where a norm of the model looks across the parts."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from outsize.data.batch import Batch
from outsize.errors import PlanError, explain
from outsize.measure.across import OVER_PIXELS, OVER_SAMPLES, norms_over
from outsize.plan.plan import Plan
from outsize.strategies.step import Step, Terms


def refuse_norms_across(step: Step, model: nn.Module, plan: Plan) -> Step:
    """Refuse a model with a norm whose mean is over what the plan cuts: now, and before each step.

    Before each step too, for a model may be set to training in between. Norms that were set to evaluation use
    the statistics they have, and look at nothing.
    """
    kinds = OVER_PIXELS if plan.tiles is not None else OVER_SAMPLES if (plan.micro_batches or 1) > 1 else ()
    norms = norms_over(model, kinds)
    if not norms:
        return step
    _check(norms)

    def checked(batch: Batch, *, last: bool) -> Terms:
        _check(norms)
        return step(batch, last=last)

    return checked


def _check(norms: Sequence[tuple[str, nn.Module]]) -> None:
    for path, module in norms:
        if module.training or getattr(module, "running_mean", None) is None:
            raise PlanError(
                explain(
                    "the plan says exact, but a norm of the model looks across the parts of a batch",
                    f"{path} ({type(module).__name__})",
                    "norms that look at one pixel, or are set to evaluation",
                    "take a model without them, or a plan for limits.allow_approximate = true",
                )
            )
