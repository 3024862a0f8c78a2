"""A training step of anyone's module, as `outsize.within` is given it: checked, followed on shapes, or run."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Collection
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._dynamo.eval_frame import OptimizedModule
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves, tree_map

from outsize.errors import ModelError, PlanError, TraceError, explain, first_line, found_in
from outsize.measure.memory import ran_out, sweep
from outsize.measure.state import left_as_it_was
from outsize.measure.tensors import Shapes, shapes_of, tensors_in
from outsize.measure.tracing import record, state_bytes, trace_step
from outsize.plan.cost import StepCost
from outsize.plan.plan import Plan
from outsize.plan.step import StepFacts, Storage
from outsize.strategies.blocks import checkpointed, unfit
from outsize.strategies.forward import Within, refuse_inside_another
from outsize.strategies.kernels import made_later

Loss = Callable[[nn.Module, Any], Tensor]
MakeOptimizer = Callable[[Any], Optimizer]

_OUTSIDE = "(loss)"  # no module has such a name
# what models, losses and optimizers raise that are given something else than they take
_MISTAKES = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    RuntimeError,
    TypeError,
    ValueError,
)


@dataclass(frozen=True)
class OwnStep:
    """One training step as the caller describes it."""

    model: nn.Module
    example: Any
    loss: Loss | None  # None: the mean square of all outputs
    optimizer: MakeOptimizer | None
    device: torch.device
    autocast: torch.dtype | None  # what autocast casts to; None: it is off
    calls: list[Shapes] = field(default_factory=list)  # what the model was given, in the latest run

    def value(self, model: nn.Module, example: Any) -> Tensor:
        """Run forward of a model, or of a twin of it, and return what backward begins at."""

        def note(_: nn.Module, args: Any, kwargs: Any) -> None:
            self.calls.append(shapes_of((args, kwargs)))

        self.calls.clear()
        noting = model.register_forward_pre_hook(note, with_kwargs=True)
        try:
            value = (self.loss or _square_of_outputs)(model, example)
        finally:
            noting.remove()
        torch.clear_autocast_cache()  # as at the end of the caller's autocast, which may be around all of this
        if isinstance(value, Tensor) and value.numel() == 1 and value.requires_grad:
            return value
        found = _named(value)
        if isinstance(value, Tensor):
            is_one = value.numel() == 1
            found = (
                "a number that no gradient comes from" if is_one else f"{found} of {value.numel()} numbers"
            )
        needed = "a tensor of one number, made from what the model returns"
        remedy = "return e.g. criterion(model(images), labels)"
        problem = "loss(model, example) gives nothing to go backward from"
        raise ModelError(explain(problem, found, needed, remedy))


def own_step(
    model: nn.Module, example: Any, loss: Loss | None, optimizer: MakeOptimizer | None, bf16: bool | None
) -> OwnStep:
    """Check what a caller says of a step, and fill in what is not said."""
    if not isinstance(model, nn.Module):
        raise ModelError(
            explain("no model to plan for", _named(model), "an nn.Module", "give the module itself")
        )
    refuse_inside_another(model)
    _refuse_compiled(model)
    if not any(each.requires_grad for each in model.parameters()):
        found = f"{_named(model)} without parameters that want gradients"
        remedy = "give the model that is trained, and freeze less of it"
        raise ModelError(explain("there is nothing to train", found, "at least one such parameter", remedy))
    kinds = [type(each) for each in tree_leaves(example)]
    if np.ndarray in kinds and not any(issubclass(kind, Tensor) for kind in kinds):
        remedy = "convert it by torch.from_numpy, and to the type that the model takes"
        raise ModelError(explain("the example holds no tensor", _named(example), "tensors", remedy))
    _refuse_sparse(model, example)
    device = next(each.device for each in model.parameters())
    if bf16 is None:
        autocast = torch.get_autocast_dtype(device.type) if torch.is_autocast_enabled(device.type) else None
    else:
        autocast = torch.bfloat16 if bf16 else None
    return OwnStep(model, example, loss, None if optimizer is None else _checked(optimizer), device, autocast)


def _refuse_compiled(model: nn.Module) -> None:
    if isinstance(model, OptimizedModule) or model._compiled_call_impl is not None:
        problem, found = "a model that is compiled as a whole runs as torch.compile has it", _named(model)
        needed = "the module as it was before torch.compile"
        remedy = "give that and call it in the block, or compile parts of it by part.compile()"
        raise ModelError(explain(problem, found, needed, remedy))


def _refuse_sparse(model: nn.Module, example: Any) -> None:
    given = [("the example", each) for each in tensors_in(example)]
    for name, each in (*model.named_parameters(), *model.named_buffers(), *given):
        if each.layout is not torch.strided:
            found = f"{name}, {str(each.layout).removeprefix('torch.')}"
            remedy = "make it dense, or keep it where it is no parameter, buffer or input"
            raise ModelError(
                explain("memory of sparse tensors is not planned", found, "dense tensors", remedy)
            )


def _checked(optimizer: MakeOptimizer) -> MakeOptimizer:
    """Return what makes an optimizer, and refuses what is none or has other parameters."""

    def refused(found: str) -> ModelError:
        needed = "a function that makes one of the parameters that it is given"
        remedy = (
            "write e.g. optimizer=torch.optim.SGD, or lambda parameters: torch.optim.SGD(parameters, lr=0.1)"
        )
        return ModelError(explain("the optimizer cannot be made for a plan", found, needed, remedy))

    if isinstance(optimizer, Optimizer) or not callable(optimizer):
        raise refused(_named(optimizer))

    def make(parameters: Any) -> Optimizer:
        given = list(parameters)
        made = optimizer(given)
        if not isinstance(made, Optimizer):
            raise refused(f"a function that returns {_named(made)}")
        known = {id(each) for each in given}
        if any(id(each) not in known for group in made.param_groups for each in group["params"]):
            raise refused("a function that returns one of other parameters")
        return made

    return make


def facts_of(step: OwnStep) -> tuple[StepFacts, str | None]:
    """Follow a step on shapes, or run it: return what it does, and why it was run."""
    try:
        return traced(step), None
    except TraceError as error:
        reason = _why(error)
    return _with_state(step, _run_somehow(step, reason)), reason


def peak_as_planned(step: OwnStep, plan: Plan) -> int:
    """Run a step on the example as a plan says, and return what it takes at its peak.

    Of a step that was run with everything kept, nobody saw when forward lets go of its tensors. Raises what torch
    raises where memory runs out.
    """
    facts = _recorded(step, Within(step.model, plan, None, tuple(step.calls)))
    return StepCost(_with_state(step, facts)).peak_bytes()


def _with_state(step: OwnStep, facts: StepFacts) -> StepFacts:
    """Return the facts of a step that was run, with what the optimizer keeps between steps."""
    if step.optimizer is None:
        return facts
    kept_bytes = _state_bytes(step.model, step.optimizer)
    kept = Storage(len(facts.storages), kept_bytes, -1, len(facts.ops), "optimizer")
    return replace(facts, storages=(*facts.storages, kept))


def traced(step: OwnStep, blocks: tuple[str, ...] = (), *, later: tuple[str, ...] = ()) -> StepFacts:
    """Follow a step on shapes; blocks are run again in backward, and what is made `later` is made by slices."""

    def value(model: nn.Module, batch: Any) -> Tensor:
        with made_later(model, later), checkpointed(model, blocks, tell=lambda _: None):
            return step.value(model, batch)

    device: Literal["cuda", "cpu"] = "cuda" if step.device.type == "cuda" else "cpu"
    bf16 = step.autocast is not None  # float16 takes the same memory
    facts = trace_step(
        step.model,
        step.example,
        loss=value,
        optimizer=step.optimizer,
        bf16=bf16,
        device=device,
        outside=_OUTSIDE,
    )
    return _of_the_model(facts)


def _of_the_model(facts: StepFacts) -> StepFacts:
    """Return facts that tell of saved tensors of the model's own: what a loss keeps, nobody but the loss lets go of."""
    others = {each.storage for each in facts.saved if each.key[0] == _OUTSIDE}
    return replace(facts, saved=tuple(each for each in facts.saved if each.storage not in others))


def _run_somehow(step: OwnStep, reason: str) -> StepFacts:
    """Run a step with everything kept or, where there is no room for that, with all that it saves in host memory."""
    found = ""
    for away in (False, True):
        try:
            return _recorded(step, away=away)
        except RuntimeError as error:
            if not ran_out(error):
                raise
            found = first_line(error)
        sweep(step.device)  # when the error is gone, which held the frames of the attempt
    problem = "a real step on the example does not fit, even with all that it saves in host memory"
    raise PlanError(explain(problem, found, f"room for it, for {reason}", "give a smaller example"))


def _recorded(step: OwnStep, around: Within | None = None, *, away: bool = False) -> StepFacts:
    """Run a step on the example, in a block or with what it saves in host memory, and leave the model as it was.

    Raises what torch raises where memory runs out.
    """

    def run() -> None:
        with torch.autocast(step.device.type, step.autocast, enabled=step.autocast is not None):
            # in containers of its own: a loss may take from them
            value = step.value(step.model, tree_map(lambda leaf: leaf, step.example))
        value.backward()

    try:
        with left_as_it_was(step.model, step.example), warnings.catch_warnings(), around or nullcontext():
            warnings.simplefilter("ignore")  # which come again when the caller's own steps run
            return _of_the_model(
                record(run, step.model, given=tensors_in(step.example), outside=_OUTSIDE, away=away)
            )
    except _MISTAKES as error:
        if isinstance(error, RuntimeError) and ran_out(error):
            raise
        raise ModelError(_mistake_in(step, error)) from error


def unfit_blocks(step: OwnStep, paths: Collection[str]) -> dict[str, str]:
    """Try on the example which modules must not run again, or lie in what does; return why."""

    def run() -> None:
        with torch.autocast(step.device.type, step.autocast, enabled=step.autocast is not None):
            (step.loss or _square_of_outputs)(step.model, tree_map(lambda leaf: leaf, step.example))

    try:
        with left_as_it_was(step.model, step.example), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return unfit(step.model, paths, run)
    except RuntimeError as error:
        if not ran_out(error):
            raise
    sweep(step.device)  # when the error is gone, which held the frames of the attempt
    return dict.fromkeys(paths, "there is no room to try it")


def _mistake_in(step: OwnStep, error: Exception) -> str:
    if "saved tensor hooks" in str(error):  # as torch.func says that it has none of
        problem, found = "a step that takes derivatives by torch.func cannot be planned", first_line(error)
        needed, remedy = (
            "backward by autograd",
            "let loss(model, example) return a number to call backward() on",
        )
        return explain(problem, found, needed, remedy)
    problem = f"a step of {type(step.model).__name__} on the example fails"
    if step.loss is None:
        needed = "what forward takes: a tensor, a tuple or list of arguments, or a dict of keywords"
        remedy = "give such an example, or a loss that calls the model with it"
    else:
        needed = "a loss that runs when it is called as loss(model, example)"
        remedy = "write e.g. loss=lambda model, images: criterion(model(images), labels)"
    return explain(problem, first_line(error), needed, remedy)


def _state_bytes(model: nn.Module, optimizer: MakeOptimizer) -> int:
    try:
        return state_bytes(model, optimizer)
    except _MISTAKES as error:
        problem, needed = (
            "the optimizer's state cannot be counted",
            "one that steps without further arguments",
        )
        remedy = "give such a one, or optimizer=None and leave room for its state"
        raise ModelError(explain(problem, first_line(error), needed, remedy)) from error


def _why(error: TraceError) -> str:
    """Say why a step could not be followed on shapes; there is nothing to do about it."""
    if isinstance(error.__cause__, DataDependentOutputException):
        return "forward looks at values (a branch on one, .item()), which shapes alone do not tell"
    if isinstance(error.__cause__, DynamicOutputShapeException):
        return f"the shape of what {error.__cause__.func} returns hangs on values, which shapes alone do not tell"
    return f"a step cannot be followed on shapes alone: {found_in(str(error))}"


def _square_of_outputs(model: nn.Module, example: Any) -> Tensor:
    """Return what takes about as much memory as cross-entropy: it keeps its input in float32, and makes a gradient."""
    if isinstance(example, tuple | list):
        output = model(*example)
    elif isinstance(example, dict) and _takes(model, example):
        output = model(**example)
    else:
        output = model(example)
    outputs = [each.float() for each in tensors_in(output) if each.requires_grad]
    found = [F.mse_loss(each, torch.zeros_like(each)) for each in outputs]
    if not found:
        needed = "a tensor that a gradient comes from, or tuples, lists and dicts of such"
        remedy = "say what backward begins at: loss=lambda model, example: ..."
        raise ModelError(
            explain("the model returns nothing to go backward from", _named(output), needed, remedy)
        )
    return torch.stack(found).sum()


def _takes(model: nn.Module, keywords: dict[Any, Any]) -> bool:
    """Say whether forward has arguments of these names."""
    try:
        inspect.signature(model.forward).bind(**keywords)
    except TypeError:
        return False
    return True


def _named(value: object) -> str:
    return "None" if value is None else f"a {type(value).__name__}"
