"""Tiles in training: one window of the batch at a time, with exactly the gradient of the whole image."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from torch import Tensor
from torch.nn import functional

from outsize.data.batch import Batch
from outsize.data.sample import IGNORE
from outsize.plan.plan import Tiling
from outsize.strategies.steps.step import Step, in_parts
from outsize.tiles.grid import cover
from outsize.tiles.window import Tile, Window


def tiled(step: Step, tiling: Tiling) -> Step:
    """Return the step that runs the tiles of a batch; every sample of it at once, where there are several."""
    return in_parts(step, partial(_tiles, tiling=tiling), take_tile)


def take_tile(batch: Batch, tile: Tile) -> Batch:
    """Cut a tile out of every sample; labels outside of its core are IGNORE, totals are those of the whole.

        labels of the image          labels of the part
        +--------------------+       +-- read -----+
        | 0 0 1 1 1 2 2 2 2  |       | - - - - - - |     Each labelled pixel is in one core, and its logits are
        | 0 0 1 1 2 2 2 2 2  |  ->   | - 1 1 2 2 - |     those of the whole image, for all they depend on is
        | 0 0 0 1 2 2 2 2 2  |       | - 0 1 2 2 - |     in the window that is read. So losses, each divided
        +--------------------+       | - - - - - - |     by its total, add up, and so do gradients.
                                     +-------------+

    A window ends within the image, or where the image ends once it is padded to the stride: there zeros stand in,
    as they do where a model pads the whole. What lies outside of a window the model itself takes for zeros. For
    the core that is so only where the image ends, too.
    """
    rows, cols = tile.core.within(tile.read).slices
    labels = batch.labels.new_full((len(batch.labels), tile.read.height, tile.read.width), IGNORE)
    labels[:, rows, cols] = batch.labels[:, *tile.core.slices]
    # not valid is 0 as the network sees it, whatever the value
    return replace(batch.each(partial(_window, window=tile.read)), labels=labels)


def _tiles(batch: Batch, tiling: Tiling) -> tuple[Tile, ...]:
    height, width = batch.images.shape[-2:]
    return cover(height, width, tiling.core_px, tiling.halo)


def _window(pixels: Tensor, window: Window) -> Tensor:
    inside = pixels[..., *window.slices]
    missing = (0, window.width - inside.shape[-1], 0, window.height - inside.shape[-2])
    return functional.pad(inside, missing) if any(missing) else inside
