"""The ways to run one training step that are compared with ours: what torch offers, each by name."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

from torch import nn
from torch.autograd.graph import save_on_cpu
from torch.utils.checkpoint import checkpoint

from outsize.bench.subject import Subject
from outsize.data.batch import Batch
from outsize.errors import JobError, PlanError, explain
from outsize.measure.tracing.record import record
from outsize.plan.plan import Compile, Plan, Swap
from outsize.strategies.compose import compose
from outsize.strategies.cudagraph.graphed import Recordings
from outsize.strategies.find import find_module
from outsize.strategies.steps.step import Forward, LossTerms, Step, Terms
from outsize.strategies.swap.traffic import Meter

OURS = "ours"  # no single way: one for each budget
WHOLE = ("",)  # the path of a model in itself
# That may wait on the GPU where everything is moved, for their copy or for their use; of a small step, a part of it.
_AHEAD_BYTES, _AHEAD_SHARE = 2**29, 1 / 8

Blocks = Sequence[str]  # paths of modules, none of which lies in another


@dataclass(frozen=True)
class Way:
    """One way to run the step."""

    label: str  # in tables and pictures
    make: Callable[[Subject, Blocks], Step]
    is_plain: bool = False  # gives nothing up: the fastest of these is what others are measured by
    compiles: bool = False


def _plain(subject: Subject, _: Blocks) -> Step:
    return compose(subject.model, subject.terms, _plan(), bf16=subject.bf16)


def _compile_whole(subject: Subject, _: Blocks, share: float | None = None) -> Step:
    return compose(subject.model, subject.terms, _plan(Compile(WHOLE, share)), bf16=subject.bf16)


def _compile_blocks(subject: Subject, blocks: Blocks, share: float | None = None) -> Step:
    setting = Compile(_some(blocks), share)
    return compose(subject.model, subject.terms, _plan(setting), bf16=subject.bf16)


def _save_on_cpu(subject: Subject, _: Blocks) -> Step:
    _refuse_cpu(subject, "save_on_cpu")
    return _within(subject, lambda: save_on_cpu(pin_memory=True))


def _move_all(subject: Subject, _: Blocks) -> Step:
    """Move by our own streams all that is saved, without a plan: as training beyond a card's memory began."""
    _refuse_cpu(subject, "this way")
    saved_bytes = _saved_bytes(subject)
    ahead_bytes = min(_AHEAD_BYTES, int(_AHEAD_SHARE * saved_bytes))
    plan = replace(_plan(), swap=Swap((), saved_bytes, ahead_bytes=ahead_bytes))
    return compose(subject.model, subject.terms, plan, bf16=subject.bf16)


def _saved_bytes(subject: Subject) -> int:
    """Return what one plain step keeps for backward, weights and inputs apart."""
    step = _plain(subject, ())
    batch = subject.batch
    given = (batch.images, batch.valid, batch.labels, *batch.maps.values())
    facts = record(lambda: step(batch, last=True), subject.model, given=given)
    subject.forget()
    kept = {each.storage for each in facts.saved}
    found = [each for each in facts.storages if each.index in kept and each.role == "activation"]
    return sum(each.size_bytes for each in found)


def _refuse_cpu(subject: Subject, what: str) -> None:
    if subject.device.type == "cpu":
        found, needed = "the CPU", "a GPU: on a CPU there is nowhere to move to"
        raise PlanError(explain(f"{what} moves tensors to host memory", found, needed, "take a GPU"))


def _checkpoint(subject: Subject, blocks: Blocks) -> Step:
    modules = [find_module(subject.model, path, "checkpointed") for path in _some(blocks)]
    return _within(subject, lambda: _checkpointed(modules))


WAYS: dict[str, Way] = {
    "plain": Way("plain eager", _plain, is_plain=True),
    "again": Way("plain again", _plain),  # the control: how far it is from plain is how far to trust the rest
    "compile": Way("compile", _compile_whole, is_plain=True, compiles=True),
    "compile-0.5": Way("compile, budget 0.5", partial(_compile_whole, share=0.5), compiles=True),
    "compile-0.25": Way("compile, budget 0.25", partial(_compile_whole, share=0.25), compiles=True),
    "compile-0.1": Way("compile, budget 0.1", partial(_compile_whole, share=0.1), compiles=True),
    "blocks": Way("compile by block", _compile_blocks, is_plain=True, compiles=True),
    "blocks-0.5": Way("compile by block, budget 0.5", partial(_compile_blocks, share=0.5), compiles=True),
    "save-on-cpu": Way("save_on_cpu, pinned", _save_on_cpu),
    "move-all": Way("everything moved", _move_all),
    "checkpoint": Way("checkpoint every block", _checkpoint),
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


def ours(
    subject: Subject,
    plan: Plan,
    tell: Callable[[str], object],
    meter: Meter,
    recordings: Recordings | None = None,
) -> Step:
    """Return the step that carries out what the planner chose; the meter reads what it moves to host memory."""
    make = partial(compose, subject.model, subject.terms, plan, bf16=subject.bf16)
    return make(tell=tell, meter=meter, recordings=recordings)


def _plan(setting: Compile | None = None) -> Plan:
    """Return a plan that nobody chose: it fits whatever there is, or runs out of memory."""
    return Plan("train", 1, limit_bytes=1, peak_bytes=1, exact=True, why=(), compile=setting)


def _within(subject: Subject, around: Forward) -> Step:
    """Return the plain step whose forward runs inside of something."""
    terms: LossTerms = subject.terms

    def inside(model: nn.Module, batch: Batch) -> Terms:
        with around():
            return terms(model, batch)

    return compose(subject.model, inside, _plan(), bf16=subject.bf16)


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
