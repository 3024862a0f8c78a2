"""Which cores a scene may be cut into for prediction, and how large they may be."""

from __future__ import annotations

import math

from outsize.plan.tilings import MOST

# Scenes of more pixels are cut though they may fit: reading, computing and writing overlap, memory does not grow with
# the scene, an interrupted prediction has cores to go on from, and of a part that is asked for no other is computed. A
# picture below is computed whole where it fits.
PICTURE_PX = 4 << 20
# Of the cores that such scenes are cut into: larger ones compute fewer pixels twice, but the first one comes late.
# 10,000 x 10,000 px on an H200 (benchmarks/scene_speed.py) were fastest in cores of 2048.
LARGEST_CORE_PX = {"cpu": 1024, "cuda": 2048}
_SMALLER_PX = (2048, 1024, 512, 256, 128, 64, 32, 16)  # then these, evened
_BLOCKS_PX = (256, 128, 64, 32, 16)


def key_step(stride_px: int) -> int:
    """Return what limits.tile_px is a multiple of: the stride of the model, and the smallest block of a file."""
    return math.lcm(stride_px, _BLOCKS_PX[-1])


def round_up(length_px: int, step_px: int) -> int:
    """Return the next multiple of a step."""
    return -(-length_px // step_px) * step_px


def even_core(length_px: int, num: int, stride_px: int) -> int:
    """Share a scene out evenly: 1280 px in cores of 1024 is one and a rest, which costs as much as two of 640."""
    share_px = -(-length_px // num)
    # large blocks where cores are large: files of many small blocks are slow to read
    block_px = next((block for block in _BLOCKS_PX if 8 * block <= share_px), _BLOCKS_PX[-1])
    return round_up(share_px, math.lcm(stride_px, block_px))


def largest_core(kind: str, scene_px: tuple[int, int]) -> float:
    """Return the largest core for a scene: a picture's has no limit, for one window may hold it whole."""
    return math.inf if scene_px[0] * scene_px[1] <= PICTURE_PX else LARGEST_CORE_PX[kind]


def cores_to_try(kind: str, scene_px: tuple[int, int], stride_px: int) -> list[int]:
    """List cores, largest first: multiples of the stride, no larger than the scene needs."""
    length_px = max(scene_px)
    numbers = {*range(1, MOST + 1), *(-(-length_px // core_px) for core_px in _SMALLER_PX)}
    cores = sorted(_by_number(length_px, numbers, stride_px).values(), reverse=True)
    largest_px = largest_core(kind, scene_px)
    # a stride may be longer than any core should be
    return [core_px for core_px in cores if core_px <= largest_px] or cores[-1:]


def cores_to_show(length_px: int, planned_px: int, stride_px: int) -> list[int]:
    """List the cores of a table, largest first, as limits.tile_px takes them; the planned one is among them."""
    cores = _by_number(length_px, set(range(1, MOST + 1)), stride_px)
    return sorted((cores | {-(-length_px // planned_px): planned_px}).values(), reverse=True)


def _by_number(length_px: int, numbers: set[int], stride_px: int) -> dict[int, int]:
    """Return cores by how many tiles they are along a side; where several are as many, the smallest will do."""
    cores = sorted({even_core(length_px, num, stride_px) for num in numbers}, reverse=True)
    return {-(-length_px // core_px): core_px for core_px in cores}
