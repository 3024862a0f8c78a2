"""Tiles in training: one window of the batch at a time, with exactly the gradient of the whole image."""

from __future__ import annotations

from functools import partial

from outsize.data.batch import Batch
from outsize.plan.plan import Tiling
from outsize.strategies.step import Step, in_parts
from outsize.tiles.grid import cover
from outsize.tiles.window import Tile


def tiled(step: Step, tiling: Tiling) -> Step:
    """Return the step that runs the tiles of a batch; every sample of it at once, where there are several."""
    return in_parts(step, partial(_tiles, tiling=tiling), take_tile)


def take_tile(batch: Batch, tile: Tile) -> Batch:
    """Cut a tile out of every sample; what is outside of its core is not learnt, totals are those of the whole.

    Each labelled pixel is in one core, and its logits are those of the whole image, for all they depend on is in the
    window that is read. So losses, each divided by its total, add up, and so do gradients.

    A window ends within the image, or where the image ends once it is padded to the stride: there zeros stand in,
    as they do where a model pads the whole. What lies outside of a window the model itself takes for zeros. For
    the core that is so only where the image ends, too.
    """
    return batch.crop(tile.read, tile.core)


def _tiles(batch: Batch, tiling: Tiling) -> tuple[Tile, ...]:
    height, width = batch.images.shape[-2:]
    return cover(height, width, tiling.core_px, tiling.halo)
