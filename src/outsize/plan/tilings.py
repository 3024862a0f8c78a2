"""The ways to cut one huge image into q x q tiles, each with its halo, its memory and its time; and which to take."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from outsize.plan.plan import Tiling
from outsize.tiles.grid import cover, redundancy
from outsize.tiles.halo import Halo
from outsize.units import format_bytes

MOST = 16  # tiles along one side that are looked at


@dataclass(frozen=True)
class Cut:
    """One way to cut an image."""

    num_per_side: int
    tiling: Tiling
    window_px: tuple[int, int]  # what is read for one tile: core and halo
    redundancy: float  # pixels computed for each pixel of the image
    peak_bytes: int
    image_s: float | None  # all tiles one after another
    fits: bool


def list_cuts(
    scene_px: tuple[int, int],
    halo: Halo,
    *,
    peak_of: Callable[[tuple[int, int]], int],
    seconds_of: Callable[[tuple[int, int]], float | None],
    budget_bytes: float,
    planned_px: int,
) -> list[Cut]:
    """Return the cuts into 1 x 1 to 16 x 16 tiles, and that with the core of the plan in its place among them.

    `peak_of` and `seconds_of` know one window.
    """
    length_px = max(scene_px)
    # by the core: where several numbers round up to one core, that many tiles are enough
    cores = {core_for(length_px, num, halo.stride_px) for num in range(1, MOST + 1)} | {planned_px}
    numbers = {-(-length_px // core_px): core_px for core_px in sorted(cores)}
    numbers[-(-length_px // planned_px)] = planned_px
    cuts: dict[int, Cut] = {}
    for num, core_px in sorted(numbers.items()):
        tiles = cover(*scene_px, core_px, halo.aligned)
        window_px = tiles[0].read.height, tiles[0].read.width
        one_s = seconds_of(window_px)
        peak_bytes = peak_of(window_px)
        tiling = Tiling.of(core_px, halo)
        cuts[num] = Cut(
            num_per_side=num,
            tiling=tiling,
            window_px=window_px,
            redundancy=redundancy(tiles, *scene_px),
            peak_bytes=peak_bytes,
            image_s=None if one_s is None else one_s * len(tiles),
            fits=peak_bytes <= budget_bytes,
        )
    return list(cuts.values())


def core_for(length_px: int, num: int, stride_px: int) -> int:
    """Return the side of a core: an even share of the image, rounded up to the model's stride."""
    step_px = num * stride_px
    return -(-length_px // step_px) * stride_px


def remarks(
    cut: Cut, cuts: Sequence[Cut], scene_px: tuple[int, int], halo: Halo, *, asked: bool = False
) -> list[str]:
    """Say why halo and core are what they are, and not the numbers that come first to mind."""
    stride_px, need_px = halo.stride_px, halo.largest_px
    aligned = halo.aligned
    read_px = max(
        aligned.rows.before_px, aligned.rows.after_px, aligned.cols.before_px, aligned.cols.after_px
    )
    found = [
        f"a pixel depends on {need_px} px around its tile; windows must begin at multiples of the model's stride, "
        f"{stride_px} px, or pooling falls out of phase: the halo is {read_px} px"
    ]
    num, core_px = cut.num_per_side, cut.tiling.core_px
    share = max(scene_px) / num
    if share % stride_px:
        found.append(
            f"{max(scene_px)} / {num} = {share:g} px is no multiple of {stride_px} px: "
            f"the core is {core_px} px, and the last one shorter"
        )
    larger = [each for each in cuts if each.fits and each.num_per_side < num]
    if asked:
        found.append("limits.tile_px asks for this core")
    elif larger:
        found.append(
            f"larger tiles would fit, but from {core_px} px on they save "
            f"{1 - larger[0].redundancy / cut.redundancy:.0%} of the pixels at most, and the first one comes late"
        )
    elif num > 1:
        found.append("it is the largest tile that fits: redundancy, (window / core) squared, falls with it")
    return found


def as_table(cuts: Sequence[Cut], taken: Cut) -> str:
    """Lay the cuts out for a person."""
    lines = ["   q   core   halo  window  redundancy      memory       time"]
    for cut in cuts:
        tiling = cut.tiling
        halo_px = max(*tiling.halo_before_px, *tiling.halo_after_px)
        time = "" if cut.image_s is None else f"{cut.image_s:9.2f} s"
        mark = "<- taken" if cut is taken else "" if cut.fits else "too large"
        lines.append(
            f"  {cut.num_per_side:2d}  {tiling.core_px:5d}  {halo_px:5d}  {max(cut.window_px):6d}  "
            f"{cut.redundancy:10.3f}  {format_bytes(cut.peak_bytes):>10}  {time:>9}  {mark}".rstrip()
        )
    return "\n".join(lines)
