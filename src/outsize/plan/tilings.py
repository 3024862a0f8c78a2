"""The ways to cut one huge image into q x q tiles, each with its halo, its memory and its time; and which to take."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
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
    image_s: float | None  # of all tiles
    fits: bool


def list_cuts(
    scene_px: tuple[int, int],
    halo: Halo,
    cores_px: Iterable[int],
    *,
    peak_of: Callable[[tuple[int, int]], int],
    seconds_of: Callable[[tuple[int, int], int], float | None],
    budget_bytes: float,
) -> list[Cut]:
    """Return the cuts into tiles with these cores, few tiles first.

    `peak_of` knows one window, `seconds_of` a number of them.
    """
    cuts = []
    for core_px in sorted(cores_px, reverse=True):
        tiles = cover(*scene_px, core_px, halo.aligned)
        window_px = tiles[0].read.height, tiles[0].read.width
        peak_bytes = peak_of(window_px)
        cut = Cut(
            num_per_side=-(-max(scene_px) // core_px),
            tiling=Tiling.of(core_px, halo),
            window_px=window_px,
            redundancy=redundancy(tiles, *scene_px),
            peak_bytes=peak_bytes,
            image_s=seconds_of(window_px, len(tiles)),
            fits=peak_bytes <= budget_bytes,
        )
        cuts.append(cut)
    return cuts


def train_cores(length_px: int, planned_px: int, stride_px: int) -> list[int]:
    """List the cores that a training window may be cut into, and that of the plan in its place among them."""
    # by the core: where several numbers round up to one core, that many tiles are enough
    cores = {core_for(length_px, num, stride_px) for num in range(1, MOST + 1)} | {planned_px}
    numbers = {-(-length_px // core_px): core_px for core_px in sorted(cores)}
    return list((numbers | {-(-length_px // planned_px): planned_px}).values())


def core_for(length_px: int, num: int, stride_px: int) -> int:
    """Return the side of a core: an even share of the image, rounded up to the model's stride."""
    step_px = num * stride_px
    return -(-length_px // step_px) * stride_px


def remarks(cut: Cut, scene_px: tuple[int, int], halo: Halo) -> list[str]:
    """Say why halo and core are what they are, and not the numbers that come first to mind."""
    stride_px, need_px = halo.stride_px, halo.largest_px
    read_px = max(*cut.tiling.halo_before_px, *cut.tiling.halo_after_px)
    short = "" if read_px >= need_px else ", for limits.halo_px asks for less"
    found = [
        f"a pixel depends on {need_px} px around its tile; windows must begin at multiples of the model's stride, "
        f"{stride_px} px, or pooling falls out of phase: the halo is {read_px} px{short}"
    ]
    num, core_px = cut.num_per_side, cut.tiling.core_px
    share = max(scene_px) / num
    if share % stride_px:
        found.append(
            f"{max(scene_px)} / {num} = {share:g} px is no multiple of {stride_px} px: "
            f"the core is {core_px} px, and the last one shorter"
        )
    return found


def why_predicted_so(cut: Cut, cuts: Sequence[Cut], largest_px: float) -> list[str]:
    """Say why a prediction has this core, of those that the table shows to fit; `largest_px` bounds those of scenes."""
    larger = [each for each in cuts if each.fits and each.num_per_side < cut.num_per_side]
    late = [each for each in larger if each.tiling.core_px > largest_px]
    found = []
    if len(late) < len(larger):
        found.append(
            "larger tiles fit, but compute more pixels: the image does not divide into them as evenly"
        )
    if late:
        saved = 1 - min(each.redundancy for each in late) / cut.redundancy
        found.append(
            f"tiles with a core of more than {largest_px} px are not taken for an image this large: they save at most "
            f"{saved:.0%} of the pixels, and reading, computing and writing overlap less, for the first one comes late"
        )
    if not larger:
        found.append(
            "it is the largest tile that fits: redundancy, about (window / core) squared, falls with it"
        )
    return found


def why_trained_so(cut: Cut, cuts: Sequence[Cut], planned_bytes: int) -> list[str]:
    """Say why a training step has this core: a way is more than its tiles."""
    found = [
        "memory and time here are those of one sample, with all kept that backward needs; with what else the plan "
        f"does, such a tile needs {format_bytes(planned_bytes)}"
    ]
    if any(each.fits and each.num_per_side < cut.num_per_side for each in cuts):
        found.append(
            "larger tiles are slower with what else the plan does, or do not fit with it: see what was rejected"
        )
    else:
        found.append(
            "redundancy, about (window / core) squared, falls as tiles grow: larger ones were tried first"
        )
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
