"""The ways to run a step that `recompute_speed.py` compares."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import save_on_cpu
from torch.utils.checkpoint import checkpoint

from outsize.errors import OutsizeError
from outsize.measure.tracing.step import trace_step
from outsize.models import MODELS, build_model
from outsize.plan.cost import StepCost
from outsize.plan.machines import find_machine
from outsize.plan.memory.recompute import find_recipes
from outsize.plan.plan import Compile
from outsize.plan.step import Key
from outsize.plan.times import Clock
from outsize.strategies.compiled import compiled
from outsize.strategies.saved import recipes
from outsize.strategies.saved.hooks import SavedStats, SavedTensors, recomputable

BANDS, CLASSES = 4, 19
TRUNK = "wider_resnet38" if "wider_resnet38" in MODELS else "smp:DeepLabV3Plus/resnet101"
OPTIONS: dict[str, dict[str, Any]] = {"unet": {"width": 64}}
# what is checkpointed and compiled, by path
BLOCKS = {
    "unet": r"(encoder|decoder)\.\d+|bottleneck",
    "wider_resnet38": r"mod\d\.\d+",
    "smp:DeepLabV3Plus/resnet101": r"encoder\.layer\d\.\d+|decoder\.(aspp|block1|block2)",
}
WAYS = {  # short name: how the table calls it
    "plain": "plain eager",
    "again": "plain again",
    "stock": "ours, stock kernels",
    "third": "ours, a third",
    "half": "ours, half",
    "ours": "ours, all that is cheap",
    "checkpoint": "torch checkpoint per block",
    "swap": "save_on_cpu, pinned",
    "compiled": "torch.compile per block",
    "ours-compiled": "ours on compiled blocks",
    "budget": "torch.compile, budget 0.5",
    "ours-budget": "ours on compiled, budget 0.5",
}
# Share of what is saved that a way is to free, as the planner would: the most bytes for a second first. Or as much of
# it as the planner finds: a skip that is recomputed is nothing to make a concatenation from.
SHARES = {"third": 0.34, "half": 0.5}
# what a way may fail with and the others go on: out of memory, not to be compiled, another version of torch
FAILURES = (RuntimeError, AssertionError, AttributeError, TypeError, OutsizeError)

Forward = Callable[[], AbstractContextManager[object]]


@dataclass
class Way:
    """One way to run the step, and what was measured of it."""

    name: str
    forward: Forward
    keys: int = 0  # saved tensors that are to be recomputed
    setup_s: float = 0.0  # compilation and warm-up
    saved_bytes: int | None = None
    peak_bytes: int | None = None
    stats: SavedStats | None = None
    failed: str | None = None
    rounds: dict[int, float] = field(default_factory=dict)  # round -> ms
    host_ms: list[float] = field(default_factory=list)  # until all was launched


class Setting:
    """One model in one precision with one batch."""

    def __init__(self, name: str, precision: str, options: argparse.Namespace) -> None:
        torch.manual_seed(0)
        self.name, self.bf16 = name, precision == "bf16"
        self.device = torch.device(options.device)
        shape = {**OPTIONS.get(name, {}), **({"width": 4} if options.quick and name in MODELS else {})}
        model = build_model(name, num_classes=CLASSES, in_channels=BANDS, **shape)
        self.model = model.to(self.device).to(memory_format=torch.channels_last).train()
        side_px = options.side
        images = torch.randn(options.batch, BANDS, side_px, side_px, device=self.device)
        self.images = images.contiguous(memory_format=torch.channels_last)
        self.labels = torch.randint(CLASSES, (options.batch, side_px, side_px), device=self.device)
        paths = [path for path, _ in model.named_modules() if re.fullmatch(BLOCKS[name], path)]
        self.blocks = {path: model.get_submodule(path) for path in paths}

    def loss(self) -> Tensor:
        """Run forward, as a training does: autocast around model and loss, the loss itself in float32."""
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.bf16):
            return F.cross_entropy(self.model(self.images).float(), self.labels)

    def step(self, forward: Forward) -> None:
        """Run forward and backward."""
        with forward():
            loss = self.loss()
        loss.backward()

    def forget(self) -> None:
        """Drop the gradients."""
        self.model.zero_grad(set_to_none=True)


def make_way(setting: Setting, name: str, compilers: dict[float | None, Compiler]) -> Way:
    """Make one way; compiled ones share what is compiled through `compilers`."""
    try:
        return _make(setting, name, compilers)
    except FAILURES as error:
        return Way(name, nullcontext, failed=text_of(error))


def budget_of(name: str) -> float | None:
    """Return the share of activations that a compiled way is allowed to keep; None: as many as the compiler likes."""
    return 0.5 if name.endswith("budget") else None


def _make(setting: Setting, name: str, compilers: dict[float | None, Compiler]) -> Way:
    model, kind = setting.model, setting.device.type
    if name in ("plain", "again"):
        return Way(name, nullcontext)
    if name == "checkpoint":
        return Way(name, lambda: _checkpointed(setting.blocks))
    if name == "swap":
        return Way(name, lambda: save_on_cpu(pin_memory=kind == "cuda"))
    if name in ("stock", "ours", *SHARES):
        keys = planned(setting, SHARES[name]) if name in SHARES else recomputable(model, setting.loss)
        way = _ours(model, name, keys)
        inner = way.forward
        way.forward = (lambda: _not_fused(kind, inner)) if name == "stock" else inner
        return way
    budget = budget_of(name)
    if budget not in compilers:
        compilers[budget] = Compiler(setting, budget)
    compiler = compilers[budget]
    if not name.startswith("ours"):
        return Way(name, compiler.around(nullcontext))

    def run() -> None:
        with compiler.around(nullcontext)():
            setting.loss()

    way = _ours(model, name, recomputable(model, run))
    way.forward = compiler.around(way.forward)
    return way


def planned(setting: Setting, share: float) -> frozenset[Key]:
    """Return what the planner makes again to free a share of what is saved, on an H200."""

    def loss(model: nn.Module, images: Tensor) -> Tensor:
        return F.cross_entropy(model(images).float(), torch.zeros_like(images[:, 0], dtype=torch.long))

    kind: Literal["cuda", "cpu"] = "cuda" if setting.device.type == "cuda" else "cpu"
    shape = tuple(setting.images.shape)
    cost = StepCost(trace_step(setting.model, shape, loss=loss, bf16=setting.bf16, device=kind))
    storages = {each.storage for each in cost.facts.saved if cost.by_index[each.storage].role != "weight"}
    left_bytes = share * sum(cost.by_index[each].size_bytes for each in storages)
    clock = Clock(find_machine("h200").rates, tf32=True, overlaps=True)
    keys: set[Key] = set()
    gone: set[int] = set()
    needed: set[int] = set()
    cheap = [each for each in find_recipes(cost, clock.again_s) if not each.costly and not each.through]
    for recipe in sorted(cheap, key=lambda each: each.cost_s / each.freed_bytes):
        if left_bytes <= 0:
            break
        if recipe.storage not in needed | gone and recipe.leaves.isdisjoint(gone):
            keys |= set(recipe.keys)
            gone.add(recipe.storage)
            needed |= recipe.leaves
            left_bytes -= recipe.freed_bytes
    return frozenset(keys)


def _ours(model: nn.Module, name: str, keys: frozenset[Key]) -> Way:
    saved = SavedTensors(model, keys)

    @contextmanager
    def forward() -> Iterator[None]:
        with saved, saved.forward():
            yield
        way.stats = saved.stats

    way = Way(name, forward, keys=len(keys))
    return way


@contextmanager
def _not_fused(kind: str, inner: Forward) -> Iterator[None]:
    """Have batch norm replayed by the kernels of the first time; settled in forward, for backward too."""
    before = recipes.FUSE[kind]
    recipes.FUSE[kind] = False
    try:
        with inner():
            yield
    finally:
        recipes.FUSE[kind] = before


@contextmanager
def _checkpointed(blocks: Mapping[str, nn.Module]) -> Iterator[None]:
    """Run blocks under torch's checkpoint as it is, batch norm counted twice and all."""
    for block in blocks.values():
        block.forward = _rerun(block.forward)
    try:
        yield
    finally:
        for block in blocks.values():
            del block.forward


def _rerun(forward: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args: checkpoint(forward, *args, use_reentrant=False)


class Compiler:
    """Compiles the blocks once for several ways: what a forward runs in besides is chosen each time."""

    def __init__(self, setting: Setting, budget: float | None) -> None:
        self._inner: Forward = nullcontext
        wanted = Compile(tuple(setting.blocks), budget)
        self._forward = compiled(setting.model, wanted, self._chosen)

    def _chosen(self) -> AbstractContextManager[object]:
        return self._inner()

    def around(self, inner: Forward) -> Forward:
        """Return what one forward runs in: compiled blocks, and `inner`."""

        def forward() -> AbstractContextManager[object]:
            self._inner = inner
            return self._forward()

        return forward


def text_of(error: BaseException) -> str:
    """Return an error in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
