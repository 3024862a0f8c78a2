"""The ways to run one training step that are compared with ours: what torch offers, each by name."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from torch import nn
from torch.autograd.graph import save_on_cpu
from torch.utils.checkpoint import checkpoint

from outsize.data.batch import Batch
from outsize.errors import JobError, PlanError, explain
from outsize.measure.tracing import record
from outsize.plan.plan import Compile, Swap, unplanned
from outsize.strategies.compose import compose
from outsize.strategies.find import find_module
from outsize.strategies.step import Forward, LossTerms, Step, Terms
from outsize.train.made_up import MadeUpStep

OURS = "ours"  # no single way: one for each budget
WHOLE = ("",)  # the path of a model in itself
# That may wait on the GPU where everything is moved, for their copy or for their use; of a small step, a part of it.
_AHEAD_BYTES, _AHEAD_SHARE = 2**29, 1 / 8

Blocks = Sequence[str]  # paths of modules, none of which lies in another


@dataclass(frozen=True)
class BenchWay:
    """One way to run the step."""

    label: str  # in tables and pictures
    make: Callable[[MadeUpStep, Blocks], Step]
    is_plain: bool = False  # gives nothing up: the fastest of these is what others are measured by
    compiles: bool = False


def _plain(made_up: MadeUpStep, _: Blocks) -> Step:
    return made_up.composed(unplanned())


def _compile_whole(made_up: MadeUpStep, _: Blocks, share: float | None = None) -> Step:
    return made_up.composed(unplanned(compile=Compile(WHOLE, share)))


def _compile_blocks(made_up: MadeUpStep, blocks: Blocks, share: float | None = None) -> Step:
    return made_up.composed(unplanned(compile=Compile(_some(blocks), share)))


def _save_on_cpu(made_up: MadeUpStep, _: Blocks) -> Step:
    _refuse_cpu(made_up, "save_on_cpu")
    return _within(made_up, lambda: save_on_cpu(pin_memory=True))


def _move_all(made_up: MadeUpStep, _: Blocks) -> Step:
    """Move by our own streams all that is saved, without a plan: as training beyond a card's memory began."""
    _refuse_cpu(made_up, "this way")
    saved_bytes = _saved_bytes(made_up)
    ahead_bytes = min(_AHEAD_BYTES, int(_AHEAD_SHARE * saved_bytes))
    return made_up.composed(unplanned(swap=Swap((), saved_bytes, ahead_bytes=ahead_bytes)))


def _saved_bytes(made_up: MadeUpStep) -> int:
    """Return what one plain step keeps for backward, weights and inputs apart."""
    step = _plain(made_up, ())
    batch = made_up.batch
    given = tuple(batch.tensors())
    facts = record(lambda: step(batch, last=True), made_up.model, given=given)
    made_up.forget()
    kept = {each.storage for each in facts.saved}
    found = [each for each in facts.storages if each.index in kept and each.role == "activation"]
    return sum(each.size_bytes for each in found)


def _refuse_cpu(made_up: MadeUpStep, what: str) -> None:
    if made_up.device.type == "cpu":
        found, needed = "the CPU", "a GPU: on a CPU there is nowhere to move to"
        raise PlanError(explain(f"{what} moves tensors to host memory", found, needed, "take a GPU"))


def _checkpoint(made_up: MadeUpStep, blocks: Blocks) -> Step:
    modules = [find_module(made_up.model, path, "checkpointed") for path in _some(blocks)]
    return _within(made_up, lambda: _checkpointed(modules))


WAYS: dict[str, BenchWay] = {
    "plain": BenchWay("plain eager", _plain, is_plain=True),
    "again": BenchWay(
        "plain again", _plain
    ),  # the control: how far it is from plain is how far to trust the rest
    "compile": BenchWay("compile", _compile_whole, is_plain=True, compiles=True),
    "compile-0.5": BenchWay("compile, budget 0.5", partial(_compile_whole, share=0.5), compiles=True),
    "compile-0.25": BenchWay("compile, budget 0.25", partial(_compile_whole, share=0.25), compiles=True),
    "compile-0.1": BenchWay("compile, budget 0.1", partial(_compile_whole, share=0.1), compiles=True),
    "blocks": BenchWay("compile by block", _compile_blocks, is_plain=True, compiles=True),
    "blocks-0.5": BenchWay(
        "compile by block, budget 0.5", partial(_compile_blocks, share=0.5), compiles=True
    ),
    "save-on-cpu": BenchWay("save_on_cpu, pinned", _save_on_cpu),
    "move-all": BenchWay("everything moved", _move_all),
    "checkpoint": BenchWay("checkpoint every block", _checkpoint),
}
NAMES = (*WAYS, OURS)
_ALWAYS = ("plain", "again")


def choose_ways(names: Sequence[str] | None) -> tuple[str, ...]:
    """Check names of ways and return them in the order of the table; plain and its control are always there."""
    for name in names or ():
        if name not in NAMES:
            near = difflib.get_close_matches(name, NAMES, n=3, cutoff=0.3)
            remedy = f"did you mean {' or '.join(near)}?" if near else "leave --ways out to run all"
            raise JobError(explain("unknown way in --ways", repr(name), f"one of {', '.join(NAMES)}", remedy))
    return tuple(name for name in NAMES if names is None or name in names or name in _ALWAYS)


def _within(made_up: MadeUpStep, around: Forward) -> Step:
    """Return the plain step whose forward runs inside of something."""
    terms: LossTerms = made_up.terms

    def inside(model: nn.Module, batch: Batch) -> Terms:
        with around():
            return terms(model, batch)

    return compose(made_up.model, inside, unplanned(), bf16=made_up.bf16)


@contextmanager
def _checkpointed(modules: Sequence[nn.Module]) -> Iterator[None]:
    """Run modules under torch's checkpoint as it is: batch norm counts a batch twice, which costs nothing."""
    for module in modules:
        module.forward = partial(checkpoint, module.forward, use_reentrant=False)
    try:
        yield
    finally:
        for module in modules:
            del module.forward


def _some(blocks: Blocks) -> tuple[str, ...]:
    if not blocks:
        remedy = "take a way that runs the model as a whole"
        raise PlanError(explain("the model has no blocks", "none", "modules of several layers", remedy))
    return tuple(blocks)
