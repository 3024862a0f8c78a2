"""Strategies put together on a small U-Net: settings that can all be carried out, and the proof that each was."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import combinations
from typing import Any

import pytest
import torch
from tests.strategies.cudagraph.recorder import Recorder, record_on_cpu
from torch import nn
from torch._dynamo import lookup_backend
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from outsize.card import to_device
from outsize.data.batch import Batch
from outsize.data.statistics import BandStatistics
from outsize.measure.tracing.step import trace_step
from outsize.models import build_model
from outsize.plan.cost import StepCost
from outsize.plan.memory.recompute import find_recipes
from outsize.plan.plan import Compile, Fuse, Offload, Plan, PlannedSwap, Recompute, Swap, Tiling, unplanned
from outsize.plan.search.mixture import mix
from outsize.strategies import compiled
from outsize.strategies.blocks import checkpointing
from outsize.strategies.compose import Step, compose
from outsize.strategies.forward import saving_tensors
from outsize.strategies.kernels import fused_layer, layers
from outsize.strategies.kernels.join import joined
from outsize.strategies.kernels.norm import batch_norm
from outsize.strategies.kernels.pool import max_pool
from outsize.strategies.saved.hooks import SavedStats, SavedTensors
from outsize.strategies.swap.traffic import Counters, Meter
from outsize.tasks.segment.terms import make_loss_terms

SIDE_PX = 51  # which a model of stride 2 fills up
ANY = ("tiles", "micro_batches", "recompute", "swap", "compile", "offload", "fuse")
WHOLE = ANY[2:]  # those that take a batch as it comes, and so with norms over it
RECORDED = ("recompute", "swap", "fuse")  # that go with one CUDA graph
GRAPHS = ("graph", "paged")
_BLOCK = "bottleneck"
_SMALL = (4, 2, 24, 24)
_MIB = 2**20


def combined(names: tuple[str, ...], *graphs: str) -> list[tuple[str, ...]]:
    """Return all combinations of strategies, and of those that are recorded with each kind of graph."""
    plain = [each for num in range(1, len(names) + 1) for each in combinations(names, num)]
    both = [each for num in range(len(RECORDED) + 1) for each in combinations(RECORDED, num)]
    return plain + [(*each, graph) for graph in graphs for each in both]


def marked(chosen: list[tuple[str, ...]]) -> list[Any]:
    """Leave what is neither one strategy, nor a pair, nor all that go together, to `make test-all`."""
    full = [each for each in chosen if not any(set(each) < set(other) for other in chosen)]
    return [
        pytest.param(
            each, id="-".join(each), marks=() if len(each) <= 2 or each in full else pytest.mark.long
        )
        for each in chosen
    ]


def build(norm: str) -> nn.Module:
    """Return the model, the same each time."""
    torch.manual_seed(5)
    model = build_model("unet", num_classes=3, in_channels=2, levels=2, width=4, norm=norm).double()
    return to_device(model, torch.device("cpu"))


def plan_of(names: Collection[str], norm: str, num_samples: int = 4) -> Plan:
    """Return the plan in which the named strategies are used, as the planner puts them together."""
    part = (2 if "micro_batches" in names else num_samples, 40 if "tiles" in names else SIDE_PX + 1)
    fuses, compiles, offloads = ("fuse" in names, "compile" in names, "offload" in names)
    fused = _fusible(norm) if fuses and not compiles else None
    settings: dict[str, Any] = {
        "tiles": Tiling(core_px=24, halo_before_px=(8, 8), halo_after_px=(8, 8), stride_px=2),
        "micro_batches": 3,
        # compiled blocks fuse their layers themselves
        "fuse": fused or Fuse(),
        "compile": Compile(("decoder.0",)),
        "offload": Offload(("encoder.0", _BLOCK)),
        "recompute": _recomputed(norm, fused, compiles=compiles, offloads=offloads, swaps="swap" in names),
        "swap": _moved("encoder.0.3" if norm == "batch" and fused else "encoder.0.2", *part),
        "graph": True,
        "paged": True,
    }
    plan = replace(unplanned(**{name: settings[name] for name in names}), batch=4)
    return replace(plan, graph=plan.graph or plan.paged)


def _loss(model: nn.Module, images: torch.Tensor) -> torch.Tensor:
    value: torch.Tensor = model(images.double()).square().sum()
    return value


@cache
def _fusible(norm: str) -> Fuse:
    model = build(norm)
    found = layers.fusible(model, trace_step(model, _SMALL, loss=_loss, device="cpu"))
    assert found.pools
    assert found.joins
    assert bool(found.norms_with_relu) == (norm == "batch")
    return found


@cache
def _recomputed(norm: str, fuse: Fuse | None, *, compiles: bool, offloads: bool, swaps: bool) -> Recompute:
    """Name all that can be recomputed, by convolutions, too, where their weights are there; and a block besides."""

    @contextmanager
    def around(twin: nn.Module) -> Iterator[None]:
        with layers.fused_layers(twin, fuse or Fuse())(), checkpointing.checkpointed(twin, (_BLOCK,)):
            yield

    cost = StepCost(trace_step(build(norm), _SMALL, loss=_loss, device="cpu", around=around))
    recipes = find_recipes(cost, lambda _: 1e-6)
    if offloads:
        recipes = tuple(each for each in recipes if not each.costly)
    found = mix(cost, recipes, lambda _: 1e-6, None, 0).as_recompute() if recipes else None
    # A block keeps nothing, nobody sees what a compiled one saves, and a loss is another one here. What is moved is
    # kept, and so is what would be made from it.
    others = (_BLOCK, *("decoder.0", "head") * compiles, *("encoder.0", "pool", "merge.0") * swaps)
    known = () if found is None else found.saved
    saved = tuple(key for key in known if key[0] and not key[0].startswith(others))
    assert saved or swaps or offloads
    return Recompute(saved, blocks=(_BLOCK,), costly=() if found is None else found.costly)


def _moved(second: str, num_samples: int, side_px: int) -> Swap:
    """What goes into both convolutions of the encoder: one leaves with the other one, the other before the decoder."""
    first, after, last = ("encoder.0.0", 0, 0), (second, 0, 0), ("merge.0", 0, 0)
    channel_bytes = num_samples * side_px**2 * 8
    moved = (
        PlannedSwap(after, 4 * channel_bytes, last, None),
        PlannedSwap(first, 2 * channel_bytes, after, last),
    )
    return Swap(moved, pinned_bytes=_MIB)


@dataclass
class Seen:
    """What was really done."""

    told: list[str] = field(default_factory=list)
    parts: list[tuple[int, int, int]] = field(default_factory=list)  # samples, rows and columns of each
    stats: list[SavedStats | None] = field(default_factory=list)
    num_block_runs: int = 0
    num_compiled_runs: int = 0
    fused: Counter[str] = field(default_factory=Counter)
    recorder: Recorder = field(default_factory=Recorder)
    meter: Meter = field(default_factory=Meter)

    def compose(self, model: nn.Module, plan: Plan) -> Step:
        """Return the step of a plan, watched; what was run to make the plan does not count."""
        self.num_block_runs = 0
        self.fused.clear()
        terms = make_loss_terms("cross_entropy", BandStatistics((0.0, 0.0), (1.0, 1.0)))

        def watched(model: nn.Module, batch: Batch) -> Any:
            self.parts.append((len(batch.images), *batch.images.shape[-2:]))
            return terms(lambda x: model(x.double()), batch)  # type: ignore[arg-type]

        self._step = compose(model, watched, plan, bf16=False, tell=self.told.append, meter=self.meter)
        return self._step  # which the meter does not keep

    def has(self, names: Collection[str], plan: Plan, model: nn.Module, norm: str, num_samples: int) -> None:
        """Assert that each of the named was done, as planned, and none of the others."""
        assert self.told == [], self.told
        assert {num for num, _, _ in self.parts} == {2 if "micro_batches" in names else num_samples}
        assert all((rows < SIDE_PX and cols < SIDE_PX) == ("tiles" in names) for _, rows, cols in self.parts)
        self._has_recomputed(plan.recompute)
        self._has_moved(self.meter.read(), plan.swap)
        assert (self.num_compiled_runs >= len(self.parts)) == ("compile" in names)
        norms = {"norm"} if norm == "batch" else set()
        expected = {"entropy"} | (set() if "compile" in names else {"pool", "join", *norms})
        assert set(self.fused) == (expected if "fuse" in names else set())
        weights = [each for each in model.parameters() if each.ndim > 1]
        assert all(isinstance(each, DTensor) == ("offload" in names) for each in weights)
        assert all(isinstance(each.grad, DTensor) == ("offload" in names) for each in weights)
        assert isinstance(model.get_submodule(_BLOCK), FSDPModule) == ("offload" in names)
        assert "offload" in names or not any(each._forward_hooks for each in model.modules())
        num_graphs = len({*names} & {*GRAPHS})
        assert self.recorder.num_recorded == num_graphs
        assert self.recorder.num_paged == ("paged" in names)
        assert self.recorder.num_replayed == num_graphs * 3

    def _has_recomputed(self, planned: Recompute | None) -> None:
        if planned is None:
            assert self.num_block_runs == 0
            assert all(each is None or each.num_recomputed == 0 for each in self.stats)
            return
        assert self.num_block_runs == 2 * len(self.parts)
        assert bool(self.stats) >= bool(planned.saved)
        for each in self.stats:
            assert each is not None
            assert each.num_recomputed == len(planned.saved)
            assert not each.unmet
            assert not each.refused

    def _has_moved(self, counters: Counters | None, planned: Swap | None) -> None:
        if planned is None:
            assert counters is None
            return
        assert counters is not None
        assert counters.num_forwards >= len(self.parts)
        assert counters.num_out == counters.num_in == counters.num_forwards * len(planned.moved)
        assert counters.num_unmet == counters.num_full == counters.num_resident == 0


def watch(monkeypatch: pytest.MonkeyPatch) -> Seen:
    """Watch what strategies do until the end of a test; torch's operations stand in for compilers and for kernels."""
    seen = Seen()

    class Watched(SavedTensors):
        @contextmanager
        def forward(self) -> Iterator[None]:
            with super().forward():
                yield
            seen.stats.append(self.stats)

    def checkpoint(run: Callable[..., Any], *args: Any, **settings: Any) -> Any:
        def counted(*args: Any) -> Any:
            seen.num_block_runs += 1
            return run(*args)

        return plain(counted, *args, **settings)

    def backend(graph: Any, example: Any) -> Callable[..., Any]:
        made = lookup_backend("aot_eager")(graph, example)

        def run(*args: Any) -> Any:
            seen.num_compiled_runs += 1
            return made(*args)

        return run

    def count(name: str, room: Any, function: str) -> None:
        runs = getattr(room, function)

        def counted(*args: Any, **settings: Any) -> Any:
            found = runs(*args, **settings)
            seen.fused[name] += found is not None
            return found

        monkeypatch.setattr(room, function, counted)

    plain = checkpointing.checkpoint
    monkeypatch.setattr(checkpointing, "checkpoint", checkpoint)
    monkeypatch.setattr(saving_tensors, "SavedTensors", Watched)
    monkeypatch.setattr(compiled, "BACKEND", backend)
    monkeypatch.setattr(fused_layer, "_ON_CPU", True)
    monkeypatch.setattr(fused_layer, "_DTYPES", (*fused_layer._DTYPES, torch.float64))
    count("norm", batch_norm, "_forward")
    count("pool", max_pool, "_forward")
    count("join", joined, "_convolved")
    count("entropy", layers, "summed")
    seen.recorder = record_on_cpu(monkeypatch)
    return seen
