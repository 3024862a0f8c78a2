"""A model ready to predict: weights on the device, what it expects of a scene, and the plan to run it by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import nn

from outsize.card import Card, load_checkpoint, to_device
from outsize.data.feeding import num_cores
from outsize.errors import ModelError, explain
from outsize.infer.cutting import PER_PIXEL, Cutting
from outsize.infer.foreign import Manner
from outsize.infer.passes import equal_to, pass_graph
from outsize.infer.sides import compared_with, fills_up, fitted, takes
from outsize.infer.stream import Settings
from outsize.job import LimitsSection
from outsize.measure.machine import free_host_bytes, look_at_machine, pick_device
from outsize.measure.tensors import own_dtype
from outsize.measure.trying import differing_at, try_tiling
from outsize.models import num_inputs
from outsize.plan.facts import Facts
from outsize.plan.plan import Plan, Tiling
from outsize.plan.predict import choose_predict
from outsize.progress import Reporter
from outsize.ranks import ALONE, World, own_device
from outsize.raster.pixel_area import pixel_sides_m
from outsize.raster.reading import SceneInfo
from outsize.tiles.halo import Halo
from outsize.tiles.passes import PassGraph

_PRECISIONS = ("auto", "fp32", "bf16")


@dataclass(frozen=True)
class Ready:
    """A model in evaluation mode on its device, with its card and plan."""

    model: nn.Module
    card: Card
    plan: Plan
    halo: Halo  # what the model needs, whatever the plan settles for
    settings: Settings
    weights_id: str = ""  # changes with the weights; "": whether they are the same next time, nobody knows
    said: str = ""  # of what a module of others returns, what is taken
    any_size: bool = (
        True  # False: of the scenes that it was made ready for, it does not take some as they are
    )
    trusted: bool = True  # False: a module of others, which may do otherwise at one size than at another
    ends: dict[tuple[int, ...], bool] = field(default_factory=dict)  # by what sides leave: found once

    def tiling_of(self, scene: SceneInfo) -> Tiling:
        """Return the plan's tiling with what becomes of a scene's sides that are no multiple of the stride."""
        size, tiling = (scene.height, scene.width), self.tiling
        if not self.plan.exact or not self.any_size:  # what is approximate is so by more than an edge
            return tiling
        key = *(each % tiling.stride_px for each in size), int(tiling.is_one(*size))
        if key not in self.ends:
            inputs = num_inputs(self.model, len(self.card.bands))
            ends = fitted(tiling, self.model, inputs, size, self.settings, trust=self.trusted)
            self.ends[key] = not ends.pads
        return replace(tiling, pads=not self.ends[key])

    def about(self, scene: SceneInfo) -> dict[str, Any]:
        """Return what a result says of how it was computed, and of what it equals where it is exact."""
        size = scene.height, scene.width
        summary: dict[str, Any] = {"exact": self.plan.exact}
        if self.plan.exact and self.plan.passes is not None:
            inputs = num_inputs(self.model, len(self.card.bands))
            summary["equals"] = equal_to(self.model, inputs, size, self.plan.passes.stride_px)
        elif self.plan.exact:
            summary["equals"] = compared_with(self.tiling_of(scene), self.model, size)
        summary["precision"] = self.settings.precision
        return summary | ({"output": self.said} if self.said else {})

    @property
    def takes_whole(self) -> bool:
        """Whether the model looks at whole pictures, and is exact because it is given them."""
        return self.plan.exact and bool(self.halo.obstacles) and self.plan.passes is None

    @property
    def tiling(self) -> Tiling:
        """The plan's tiling; a plan for prediction always has one."""
        assert self.plan.tiles is not None
        return self.plan.tiles


def load_ready(
    checkpoint: Path,
    limits: LimitsSection,
    scenes: Sequence[SceneInfo],
    cutting: Cutting,
    *,
    device_name: str,
    precision: str,
    world: World = ALONE,
) -> Ready:
    """Load a checkpoint and plan for the scenes on the device at hand; of several ranks the owner plans for all."""
    model, card = load_checkpoint(checkpoint)
    status = checkpoint.stat()
    weights_id = f"{checkpoint.resolve()}:{status.st_size}:{status.st_mtime_ns}"
    device_name = own_device(world, device_name)
    if world.is_owner:
        own = _share_of(limits, world)
        ready = make_ready(
            model, card, own, scenes, cutting=cutting, device_name=device_name, precision=precision
        )
    if world.is_alone:
        return replace(ready, weights_id=weights_id)
    heard = world.owners(lambda: replace(ready, model=nn.Module()))
    settings = replace(heard.settings, world=world, num_threads=world.share_of(num_cores()))
    if world.is_owner:
        model = ready.model
    else:
        settings = replace(settings, device=pick_device(device_name))
        model = to_device(model, settings.device, channels_last=settings.channels_last).eval()
    return replace(heard, model=model, settings=settings, weights_id=weights_id)


def _share_of(limits: LimitsSection, world: World) -> LimitsSection:
    """Return the limits of one of the processes that share a machine: of its memory each has a part."""
    if world.local_size == 1:
        return limits
    host_bytes = world.share_of(limits.host_memory or free_host_bytes())
    return limits.model_copy(update={"host_memory": host_bytes})


def make_ready(
    model: nn.Module,
    card: Card,
    limits: LimitsSection,
    scenes: Sequence[SceneInfo],
    *,
    device_name: str,
    precision: str,
    cutting: Cutting = PER_PIXEL,
    manner: Manner | None = None,
) -> Ready:
    """Plan for a model and move it to its device; one of others is called in a `manner` of its own."""
    device = pick_device(device_name)
    bf16 = wants_bf16(precision, device, own_dtype(model))
    channels_last = manner is None or manner.channels_last
    machine = look_at_machine(device)
    # the largest of either side: a long strip may have most pixels and yet the smaller windows
    largest_px = max(scene.height for scene in scenes), max(scene.width for scene in scenes)
    largest_px = cutting.seen_px(model, largest_px)
    inputs = num_inputs(model, len(card.bands))
    known: dict[str, Any] = {"largest_px": largest_px, "channels_last": channels_last}
    facts = cutting.facts(model, len(card.bands), machine, bf16=bf16, **known)

    @cache
    def taken() -> bool:
        return manner is None or _takes(model, inputs, scenes, manner)

    def laid_out() -> PassGraph | None:
        return pass_graph(model, inputs, largest_px, facts.halo.stride_px, trust=manner is None)

    def choose(known: Facts) -> Plan:
        return choose_predict(
            known,
            cutting.limits(limits),
            largest_px,
            any_size=not known.halo.obstacles or taken(),
            laid_out=laid_out if cutting.exactly else None,
        )

    plan = choose(facts)
    cut = plan.passes is None and plan.tiles is not None and not plan.tiles.is_one(*largest_px)
    if (
        manner is not None and plan.exact and plan.tiles is not None and cut
    ):  # what runs in passes was tried as such
        differing = differing_at(model, _shapes(plan, plan.tiles, inputs, scenes), plan.tiles.stride_px)
        found = (differing,) if differing else try_tiling(model, facts.halo, inputs)
        if found:
            facts = replace(facts, halo=replace(facts.halo, obstacles=found))
            plan = choose(facts)
    model = to_device(model, device, channels_last=channels_last).eval()
    settings = replace(
        stream_settings(plan, device, bf16), dtype=own_dtype(model), channels_last=channels_last
    )
    said, any_size = "" if manner is None else manner.said, not _odd(scenes, facts.halo.stride_px) or taken()
    ready = Ready(
        model, card, plan, facts.halo, settings, said=said, any_size=any_size, trusted=manner is None
    )
    return _with_sides(ready, scenes)


def _shapes(plan: Plan, tiling: Tiling, inputs: int, scenes: Sequence[SceneInfo]) -> list[tuple[int, ...]]:
    """List the inputs that a model will be given by a plan, and the whole scenes whose answer that is to be.

    Windows come in full batches and in what is left of them; a whole scene is alone.
    """
    shapes: list[tuple[int, ...]] = []
    for size in {(scene.height, scene.width): None for scene in scenes}:
        tiles = tiling.cover(*size)
        window = tiles[0].read.height, tiles[0].read.width
        whole = [-(-side // tiling.stride_px) * tiling.stride_px for side in size]
        left = len(tiles) % plan.batch or plan.batch
        shapes += [(plan.batch, inputs, *window), (left, inputs, *window), (1, inputs, *whole)]
    return list(dict.fromkeys(shapes))


def _takes(model: nn.Module, inputs: int, scenes: Sequence[SceneInfo], manner: Manner) -> bool:
    """Say whether a model runs on these scenes as a whole: some refuse what is no multiple of their stride."""
    sizes = {(scene.height, scene.width) for scene in scenes}
    return all(takes(model, inputs, size, channels_last=manner.channels_last) for size in sizes)


def _odd(scenes: Sequence[SceneInfo], stride_px: int) -> list[SceneInfo]:
    return [scene for scene in scenes if scene.height % stride_px or scene.width % stride_px]


def _with_sides(ready: Ready, scenes: Sequence[SceneInfo]) -> Ready:
    """Let the plan say what becomes of sides that are no multiple of the stride, where there are such."""
    stride_px = ready.tiling.stride_px
    odd = _odd(scenes, stride_px)
    if not odd or not ready.plan.exact or fills_up(ready.model):
        return ready
    num_as_it_is = sum(not ready.tiling_of(scene).pads for scene in odd)
    which = "" if num_as_it_is in (0, len(odd)) else f" ({num_as_it_is} of {len(odd)} such scenes)"
    text = f"sides that are no multiple of {stride_px} px: "
    if num_as_it_is:
        text += f"windows end where the scene ends, exact is model(scene){which}"
    else:
        text += "filled up with zeros, exact is the model's answer to that"
    return replace(ready, plan=replace(ready.plan, why=(*ready.plan.why, text)))


def stream_settings(plan: Plan, device: torch.device, bf16: bool) -> Settings:
    """Turn a plan for prediction into settings of the tile stream."""
    return Settings(batch=plan.batch, device=device, bf16=bf16, num_threads=num_cores(), passes=plan.passes)


def wants_bf16(precision: str, device: torch.device, dtype: torch.dtype = torch.float32) -> bool:
    """Turn a job's precision into whether to compute in bf16: of itself only where the GPU has units for it.

    This is the one rule of the library and of the commands. Only what is float32 is lowered, and "fp32" lowers nothing:
    a module whose weights are of another type computes in that.
    """
    if precision not in _PRECISIONS:
        need = f"one of {', '.join(_PRECISIONS)}"
        raise ModelError(
            explain("unknown precision", repr(precision), need, "leave it out to have it chosen")
        )
    if dtype != torch.float32:
        if precision == "bf16" and dtype != torch.bfloat16:
            found, need = (
                f"weights of {str(dtype).removeprefix('torch.')}",
                "weights of float32 to be lowered",
            )
            remedy = "leave precision out, or cast the module"
            raise ModelError(explain("bf16 does not fit the module", found, need, remedy))
        return False
    if precision != "auto":
        return precision == "bf16"
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)


def warn_resolution(ready: Ready, info: SceneInfo, reporter: Reporter) -> None:
    """Warn of a scene whose pixels have another size on the ground than those that were learnt from."""
    trained, given = ready.card.resolution, pixel_sides_m(info.georef, info.height, info.width)
    if trained is None or given is None:
        return
    if max(abs(a / b - 1) for a, b in zip(given, trained, strict=True)) > 0.1:
        text = (
            f"warning: {info.path.name} has pixels of {given[0]:.3g} x {given[1]:.3g} m, the model was trained on "
            f"{trained[0]:.3g} x {trained[1]:.3g} m: expect worse results, or resample the scene"
        )
        reporter.say("warning", text, scene=str(info.path))
