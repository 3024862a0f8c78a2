"""A model ready to predict: weights on the device, what it expects of a scene, and the plan to run it by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from outsize.data.loader import num_cores
from outsize.infer.stream import Settings
from outsize.job import LimitsSection
from outsize.measure.machine import look_at_machine, pick_device
from outsize.plan.choose import choose_predict
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
) -> Ready:
    """Plan for a model and move it to its device."""
    device = pick_device(device_name)
    bf16 = wants_bf16(precision, device)
    facts = facts_for(card.task, model, len(card.bands), look_at_machine(device), bf16=bf16)
    # the largest of either side: a long strip may have most pixels and yet the smaller windows
    largest_px = max(scene.height for scene in scenes), max(scene.width for scene in scenes)
    plan = choose_predict(facts, limits_for(card.task, limits), largest_px)
    to_device(model, device).eval()
    return Ready(model, card, plan, facts.halo, stream_settings(plan, device, bf16), weights_id)


def stream_settings(plan: Plan, device: torch.device, bf16: bool) -> Settings:
    """Turn a plan for prediction into settings of the tile stream."""
    return Settings(batch=plan.batch, device=device, bf16=bf16, num_threads=num_cores())


def wants_bf16(precision: str, device: torch.device) -> bool:
    """Turn the job's precision into whether to compute in bf16: of itself only where the GPU has units for it."""
    if precision != "auto":
        return precision == "bf16"
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)
