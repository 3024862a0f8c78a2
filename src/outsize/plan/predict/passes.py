"""Plans an exact prediction in passes: how large the tiles of each are, and where what is kept between them lies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from outsize.graph import INPUT, PARAMETER
from outsize.job import LimitsSection
from outsize.plan.facts import Facts
from outsize.plan.plan import Passes, Plan, Tiling
from outsize.tiles.passes import PassGraph, Role, Walk
from outsize.units import format_bytes, format_count, format_pixels

_HOST_SHARE = 0.8  # of what a GPU's host has free, that maps between passes may fill


@dataclass(frozen=True)
class PassRoom:
    """What passes may take: bytes for computing, and for what lies in host memory between them; apart on a GPU."""

    compute_bytes: float
    keep_bytes: float | None  # None: both come out of compute_bytes

    def holds(self, tile_bytes: float, kept_bytes: float) -> bool:
        """Whether tiles fit beside what is kept."""
        if self.keep_bytes is None:
            return tile_bytes + kept_bytes <= self.compute_bytes
        return tile_bytes <= self.compute_bytes and kept_bytes <= self.keep_bytes


def passes_within(
    known: Facts,
    limits: LimitsSection,
    laid: PassGraph,
    cores_px: Sequence[int],
    scene_px: tuple[int, int],
    device: tuple[int, float, float],
) -> Plan | None:
    """Plan passes for a device by its limit, what of it may be filled, and what lasts there.

    On a GPU, maps between passes lie in the memory of its host.
    """
    limit_bytes, budget_bytes, lasting_bytes = device
    keep_bytes = None
    if known.machine.device != "cpu":
        host_bytes = _HOST_SHARE * known.machine.host_free_bytes
        keep_bytes = min(host_bytes, limits.host_memory or host_bytes)
    return plan_passes(
        laid,
        cores_px,
        PassRoom(budget_bytes - lasting_bytes, keep_bytes),
        scene_px=scene_px,
        limit_bytes=limit_bytes,
        lasting_bytes=lasting_bytes,
        stride_px=known.halo.stride_px,
    )


def plan_passes(
    laid: PassGraph,
    cores_px: Sequence[int],
    room: PassRoom,
    *,
    scene_px: tuple[int, int],
    limit_bytes: int,
    lasting_bytes: float,
    stride_px: int,
) -> Plan | None:
    """Return the plan of a prediction in passes beside what lasts in the device's memory; None: nothing fits."""
    passes = choose_passes(laid, cores_px, room)
    if passes is None:
        return None
    kept_bytes = passes.kept_bytes if room.keep_bytes is None and not passes.on_disk else 0
    return Plan(
        purpose="predict",
        batch=1,
        limit_bytes=limit_bytes,
        peak_bytes=int(lasting_bytes + passes.tile_bytes + kept_bytes),
        exact=True,
        why=(*_why_filled(laid, scene_px), *why_passes(passes, laid)),
        tiles=Tiling(passes.core_px, (0, 0), (0, 0), 1),
        passes=replace(passes, stride_px=stride_px),
    )


def _why_filled(laid: PassGraph, scene_px: tuple[int, int]) -> tuple[str, ...]:
    """Say what exact compares with, where the model does not take the scene as it is."""
    if laid.size == scene_px:
        return ()
    takes = f"the model takes no picture of {format_pixels(*scene_px)}"
    return (
        f"{takes}: it is filled up with zeros to {format_pixels(*laid.size)}, and compared with that as a whole",
    )


def choose_passes(laid: PassGraph, cores_px: Sequence[int], room: PassRoom) -> Passes | None:
    """Return passes with the largest core that fits, with maps in memory where they fit beside it, else on disk.

    None: not even the smallest tile fits.
    """
    kept_bytes = laid.number_bytes * most_kept(laid)
    for on_disk in (False, True):
        for core_px in cores_px:
            largest = max(largest_tile(laid, number, core_px) for number in range(laid.num_passes))
            tile_bytes = laid.number_bytes * (_held(laid) + largest)
            if room.holds(tile_bytes, 0 if on_disk else kept_bytes):
                work = work_of(laid, cores_of(laid, core_px, tile_bytes))
                return Passes(
                    laid.num_passes, laid.num_pools, core_px, tile_bytes, kept_bytes, on_disk, round(work, 3)
                )
    return None


def cores_of(laid: PassGraph, core_px: int, tile_bytes: int) -> tuple[int, ...]:
    """Return the core of each pass: the last has that of the map to write, others larger ones as far as they fit.

    Maps of deep layers are small: four or a hundred tiles of the last pass are one of theirs, with fewer borders.
    """
    room = tile_bytes / laid.number_bytes - _held(laid)
    cores = []
    for number in range(laid.num_passes - 1):
        taken = core_px
        while taken < max(laid.size) and largest_tile(laid, number, 2 * taken) <= room:
            taken *= 2
        cores.append(taken)
    return (*cores, core_px)


def work_of(laid: PassGraph, cores_px: Sequence[int]) -> float:
    """Return how many numbers all passes make, in those that the model makes of the whole picture."""
    made = whole = 0
    for number, core_px in enumerate(cores_px):
        walk = Walk(laid, number, core_px)
        for index in walk.made:
            numbers = prod(laid.graph.ops[index].shape)
            whole += numbers
            made += numbers // prod(laid.map(index).sizes) * prod(walk.lengths(index))
    return made / whole if whole else 1.0


def largest_tile(laid: PassGraph, number: int, core_px: int) -> int:
    """Count the numbers that the largest tile of a pass has at once: inputs, and what is still to be read."""
    walk = Walk(laid, number, core_px)
    ops = laid.graph.ops
    sizes = {
        index: prod(ops[index].shape) // prod(laid.map(index).sizes) * prod(walk.largest(index))
        for index in {*walk.made, *(each for index in walk.made for each in laid.maps_of(index))}
    }
    last_use: dict[int, int] = {}
    for index in walk.made:
        last_use |= dict.fromkeys(laid.maps_of(index), index)
    lasting = {laid.output, *(laid.maps_of(pool)[0] for pool in laid.pooled[number])}
    live = {index for index in sizes if laid.pass_of[index] < number or ops[index].kind == INPUT}
    most = now = sum(sizes[index] for index in live)
    for index in walk.made:
        now += sizes[index]
        # room for a second copy: padding at a border, and the taps of a resize
        again = sizes[index] if ops[index].kind in ("upsample", "conv", "pad") else 0
        most = max(most, now + again)
        for each in {*laid.maps_of(index)}:
            if last_use.get(each) == index and each not in lasting:
                now -= sizes[each]
        if index not in last_use and index not in lasting:
            now -= sizes[index]
    return most


def most_kept(laid: PassGraph) -> int:
    """Count the most numbers that lie between passes at once: made by the end of a pass, and read in it or later."""
    most = 0
    for number in range(laid.num_passes):
        kept = [index for each in laid.kept[: number + 1] for index in each]
        lying = [index for index in kept if laid.last_pass[index] >= number]
        most = max(most, sum(prod(laid.graph.ops[index].shape) for index in lying))
    return most


def _held(laid: PassGraph) -> int:
    """Count the numbers of what is there as a whole besides weights: pooled, or made from what is."""
    return sum(
        prod(laid.graph.ops[index].shape)
        for index, part in laid.parts.items()
        if part.map is None and laid.graph.ops[index].kind != PARAMETER
    )


def why_passes(passes: Passes, laid: PassGraph) -> tuple[str, ...]:
    """Say what the passes do and what they cost."""
    waiting = [index for index, part in laid.parts.items() if part.role not in (Role.LOCAL, Role.PLAIN)]
    first = laid.graph.ops[waiting[0]] if waiting else None
    looks = "its answer depends on the size of the picture"
    if first is not None:
        more = "" if len(waiting) == 1 else f", the first is {first.module or 'the model'} ({first.kind})"
        looks = f"{format_count(len(waiting), 'operation')} of the model look{'s' if len(waiting) == 1 else ''} at the "
        looks += f"whole picture{more}"
    where = "disk beside the result" if passes.on_disk else "host memory"
    return (
        f"exact, in {passes.num} pass{'' if passes.num == 1 else 'es'} over the tiles: {looks}",
        f"between passes at most {format_bytes(passes.kept_bytes)} of maps lie in {where}; all passes together compute "
        f"{passes.work:.2f} times what the whole picture takes",
    )
