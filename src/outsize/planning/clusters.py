"""A job on many GPUs that need not be here: tiles x stages x replicas, what an epoch takes, and where its time goes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from outsize.errors import PlanError
from outsize.job import Job
from outsize.plan.limits import usable_bytes
from outsize.plan.links import Network, network_of
from outsize.plan.machines import find_machine
from outsize.plan.partition import Chain, chain_of
from outsize.plan.simulate import Arrangement, Cluster, Workshare, arrange
from outsize.plan.tilings import core_for
from outsize.planning.jobs import count_steps, lay, train_task
from outsize.planning.situation import Situation, situation_named
from outsize.progress import Reporter
from outsize.tiles.grid import cover, redundancy
from outsize.units import format_bytes, format_count, format_seconds, sides_of

if TYPE_CHECKING:
    from outsize.plan.way import StepRequest

_TILES = (1, 2, 4, 8, 16)  # along one side of a window


@dataclass(frozen=True)
class SpreadJob:
    """A training spread over GPUs, in windows cut into so many tiles along each side."""

    num_gpus: int
    network: Network
    tiles_per_side: int
    window_px: tuple[int, int]
    redundancy: float  # pixels computed for each pixel learnt from
    found: Arrangement
    per_sample: str | None  # what looks across samples, and so sees fewer of them

    @property
    def efficiency(self) -> float:
        """Against GPUs that only compute, and each pixel once."""
        return self.found.efficiency / self.redundancy

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        network = {
            name: value["name"] for name, value in asdict(self.network).items() if name != "gpus_per_host"
        }
        return {
            "num_gpus": self.num_gpus,
            **network,
            "tiles_per_side": self.tiles_per_side,
            "window_px": self.window_px,
            "redundancy": self.redundancy,
            **self.found.as_dict(),
            "efficiency": self.efficiency,
        }

    def lines(self) -> list[str]:
        """Say it for a person."""
        found, q = self.found, self.tiles_per_side
        height, width = self.window_px
        cut = "whole windows" if q == 1 else f"{q} x {q} tiles, read as {height} x {width} px"
        folded = ", encoder and decoder of a level on one GPU" if found.folded else ""
        again = ", forward run again in backward" if found.recomputes else ""
        gpus, replicas = format_count(self.num_gpus, "GPU"), format_count(found.num_replicas, "replica")
        stages = f"{format_count(found.num_stages, 'stage')}{folded}"
        micro = "1 micro-batch" if found.num_micro == 1 else f"{found.num_micro:,} micro-batches"
        lines = [
            f"{gpus}: {cut}, {replicas} of {stages}; {micro} of {found.micro_batch}{again}",
            f"  {format_seconds(found.step_s)} for a step, {format_seconds(found.epoch_s)} for an epoch, "
            f"{format_bytes(found.peak_bytes)} on the fullest GPU, efficiency {self.efficiency:.0%}",
            f"  time goes: {', '.join(f'{name} {share:.1%}' for name, share in found.shares.items())}",
        ]
        if q > 1:
            lines.append(f"  tiles compute {self.redundancy:.2f} times the pixels, for their halos")
        if found.num_stages > 1:
            lines += [f"  because {reason}" for reason in found.partition.why]
        if self.per_sample is not None:
            lines.append(f"  approximate: {self.per_sample} sees the samples of a micro-batch alone")
        return lines


def spread_over(job: Job, gpu: str, num_gpus: int, link: str, reporter: Reporter) -> list[SpreadJob]:
    """Return the ways to spread a job, for each number of tiles the fastest; the one with the shortest epoch first."""
    spec = find_machine(gpu)
    where = situation_named(gpu, 1, job.train.precision)
    net = network_of(spec.name, 1 if spec.host is None else spec.host.num_gpus, num_gpus, link)
    ground = lay(job, reporter)
    asked = train_task(job, ground.model, len(ground.bands), ground.halo, where)
    cluster = Cluster(num_gpus, net, usable_bytes(where.machine, job.limits))
    epoch_samples = count_steps(job, ground.splits)[0]
    found, refused = [], []
    for q, window_px, more in _windows(asked):
        work = Workshare(job.train.batch * q * q, epoch_samples * q * q, _chains(asked, where, window_px))
        try:
            best = arrange(work, cluster)[0]
        except PlanError as error:
            refused.append(error)
            continue
        found.append(SpreadJob(num_gpus, net, q, window_px, more, best, asked.across_samples))
    if not found:
        raise refused[-1]
    return sorted(found, key=lambda each: each.found.epoch_s)


def _windows(asked: StepRequest) -> Iterator[tuple[int, tuple[int, int], float]]:
    """Yield ways to cut a window: tiles along a side, what is read for one, and pixels computed for each pixel."""
    sides_px = sides_of(asked.side_px)
    yield 1, sides_px, 1.0
    if asked.across_pixels is not None or asked.halo.obstacles:
        return
    seen = {max(sides_px)}
    for q in _TILES[1:]:
        core_px = core_for(max(sides_px), q, asked.halo.stride_px)
        if core_px in seen or core_px <= asked.halo.largest_px:
            continue
        seen.add(core_px)
        tiles = cover(*sides_px, core_px, asked.halo.aligned)
        window_px = max(tile.read.height for tile in tiles), max(tile.read.width for tile in tiles)
        if window_px < sides_px:  # else halos make every tile as large as the whole
            yield q, window_px, redundancy(tiles, *sides_px)


def _chains(asked: StepRequest, where: Situation, window_px: tuple[int, int]) -> Any:
    @cache
    def chain(batch: int) -> Chain:
        return chain_of(asked.step_of(batch, window_px), where.clock)

    return chain
