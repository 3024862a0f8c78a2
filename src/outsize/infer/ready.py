"""A model ready to predict: weights on the device, what it expects of a scene, and the plan to run it by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import nn

from outsize.data.loader import num_cores
from outsize.errors import TraceError
from outsize.infer.stream import Settings
from outsize.job import LimitsSection
from outsize.measure.machine import look_at_machine, pick_device
from outsize.measure.step import trace_step
from outsize.measure.trial import try_tiling
from outsize.models import num_inputs
from outsize.plan.choose import choose_predict
from outsize.plan.facts import Facts
from outsize.plan.plan import Plan, Tiling
from outsize.raster.read import SceneInfo
from outsize.tasks import facts_for, limits_for
from outsize.tiles.halo import Halo
from outsize.train.checkpoint import Card, load_checkpoint, to_device


@dataclass(frozen=True)
class Ready:
    """A model in evaluation mode on its device, with its card and plan."""

    model: nn.Module
    card: Card
    plan: Plan
    halo: Halo  # what the model needs, whatever the plan settles for
    settings: Settings
    weights_id: str  # changes with the weights

    @property
    def takes_whole(self) -> bool:
        """Whether the model looks at whole pictures, and is exact because it is given them."""
        return self.plan.exact and bool(self.halo.obstacles)

    @property
    def tiling(self) -> Tiling:
        """The plan's tiling; a plan for prediction always has one."""
        assert self.plan.tiles is not None
        return self.plan.tiles


def load_ready(
    checkpoint: Path, limits: LimitsSection, scenes: Sequence[SceneInfo], *, device_name: str, precision: str
) -> Ready:
    """Load a checkpoint and plan for the scenes on the device at hand."""
    model, card = load_checkpoint(checkpoint)
    status = checkpoint.stat()
    weights_id = f"{checkpoint.resolve()}:{status.st_size}:{status.st_mtime_ns}"
    return make_ready(
        model, card, limits, scenes, device_name=device_name, precision=precision, weights_id=weights_id
    )


def make_ready(
    model: nn.Module,
    card: Card,
    limits: LimitsSection,
    scenes: Sequence[SceneInfo],
    *,
    device_name: str,
    precision: str,
    weights_id: str,
    is_foreign: bool = False,
) -> Ready:
    """Plan for a model and move it to its device; one that `is_foreign` may take pictures of some sizes only."""
    device = pick_device(device_name)
    bf16 = wants_bf16(precision, device)
    facts = facts_for(card.task, model, len(card.bands), look_at_machine(device), bf16=bf16)
    # the largest of either side: a long strip may have most pixels and yet the smaller windows
    largest_px = max(scene.height for scene in scenes), max(scene.width for scene in scenes)

    def choose(known: Facts) -> Plan:
        any_size = not is_foreign or not known.halo.obstacles or _takes(model, scenes)
        return choose_predict(known, limits_for(card.task, limits), largest_px, any_size=any_size)

    plan = choose(facts)
    if is_foreign and plan.exact and plan.tiles is not None and plan.tiles.core_px < max(largest_px):
        found = try_tiling(model, facts.halo, num_inputs(model, len(card.bands)))
        if found:
            facts = replace(facts, halo=replace(facts.halo, obstacles=found))
            plan = choose(facts)
    to_device(model, device).eval()
    return Ready(model, card, plan, facts.halo, stream_settings(plan, device, bf16), weights_id)


def _takes(model: nn.Module, scenes: Sequence[SceneInfo]) -> bool:
    """Say whether a model runs on these scenes as a whole: some refuse what is no multiple of their stride."""
    try:
        for height, width in {(scene.height, scene.width) for scene in scenes}:
            shape = (1, num_inputs(model, scenes[0].num_bands), height, width)
            trace_step(model, shape, loss=None, device="cpu")
    except TraceError:
        return False
    return True


def stream_settings(plan: Plan, device: torch.device, bf16: bool) -> Settings:
    """Turn a plan for prediction into settings of the tile stream."""
    return Settings(batch=plan.batch, device=device, bf16=bf16, num_threads=num_cores())


def wants_bf16(precision: str, device: torch.device) -> bool:
    """Turn the job's precision into whether to compute in bf16: of itself only where the GPU has units for it."""
    if precision != "auto":
        return precision == "bf16"
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)
