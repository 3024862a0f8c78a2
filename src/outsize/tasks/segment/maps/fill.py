"""Fills a store with the cores of a scene: some are read while others are computed and others written."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray
from torch import nn

from outsize.card import Card
from outsize.errors import DataError, explain
from outsize.infer.passes import streaming
from outsize.infer.prepare import make_prepare
from outsize.infer.stream import NODATA, Settings, TileResult, Waits
from outsize.progress import Reporter
from outsize.raster.polygons import AreaOfInterest
from outsize.raster.reading import SceneReader
from outsize.raster.writing import Layer, TileStore
from outsize.tasks.segment.maps.decoding import Wanted, decode
from outsize.tasks.segment.maps.unanswered import none_answered
from outsize.threads import Threads
from outsize.tiles.window import Tile

_AHEAD = 8  # finished cores that may wait for the writer


def predict_tiles(
    model: nn.Module,
    card: Card,
    tiles: Sequence[Tile],
    store: TileStore,
    *,
    wanted: Wanted,
    settings: Settings,
    reporter: Reporter,
    inside: AreaOfInterest | None = None,
) -> Waits:
    """Fill a store with every core that it lacks; one thread writes while others read and the device computes.

    Of several ranks each takes every n-th of those tiles, and only the owner says that there is nothing in a scene.
    """
    info, world = store.info, settings.world
    world.at(f"the tiles of {info.path.name}")
    todo = world.owners(lambda: _left_to_do(tiles, store, wanted, inside))
    own = world.deal(todo)
    title, num_own = f"predict {info.path.name}", len(tiles) - len(todo) + len(own)
    num_begun = sum(1 for tile in tiles if inside is None or inside.meets(tile.core))
    prepare = make_prepare(card.bands, info, card.statistics, card.maps)
    decode_tiles = partial(decode, wanted=wanted)
    found_valid, waits = False, Waits()
    writes: deque[Future[bool]] = deque()
    with (
        SceneReader(info) as reader,
        Threads(1, "write", "writes tiles", "free host memory, or set limits.tile_px lower") as writer,
        streaming(
            model,
            reader,
            own,
            prepare=prepare,
            decode=decode_tiles,
            settings=replace(settings, folder=store.folder),
            reporter=reporter,
            waits=waits,
        ) as results,
        reporter.bar(title, num_own, "tile", activity="predict", parallel=world.size) as bar,
    ):
        bar.advance(len(tiles) - len(todo))
        for result in results:
            writes.append(writer.submit(_write, store, result, inside))
            if len(writes) > _AHEAD:
                found_valid |= writer.result(writes.popleft())
            bar.advance()
        for write in writes:
            found_valid |= writer.result(write)
    found_valid = world.agree(found_valid)
    if found_valid or len(todo) < num_begun or not world.is_owner:
        return waits
    store.refresh()
    if store.num_unanswered:
        raise none_answered(info.path)
    need, remedy = "at least one pixel that is not nodata", "give another scene, or correct its nodata value"
    raise DataError(explain(f"{info.path} has nothing to predict", "nodata everywhere", need, remedy))


def _left_to_do(
    tiles: Sequence[Tile], store: TileStore, wanted: Wanted, inside: AreaOfInterest | None
) -> list[Tile]:
    """Return the tiles that a store lacks; those that an area does not meet are nodata without having been read."""
    for tile in tiles:
        if inside is not None and not inside.meets(tile.core) and not store.is_done(tile.index):
            store.write(tile.index, tile.core, _nothing(tile, wanted))
    return [tile for tile in tiles if not store.is_done(tile.index)]


def _write(store: TileStore, result: TileResult, inside: AreaOfInterest | None) -> bool:
    """Write one core and say whether it holds any valid pixel."""
    layers, unanswered = dict(result.layers), result.unanswered
    if inside is not None:
        # masked when it is written and not when it is read: the model sees what is around an area
        counted = inside.mask(result.tile.core)
        layers = {name: np.where(counted, layer, np.uint8(NODATA)) for name, layer in layers.items()}
        unanswered = None if unanswered is None else unanswered & counted
    num_unanswered = 0 if unanswered is None else int(np.count_nonzero(unanswered))
    store.write(result.tile.index, result.tile.core, layers, num_unanswered)
    return bool((layers["classes"] != NODATA).any())


def _nothing(tile: Tile, wanted: Wanted) -> dict[str, NDArray[np.uint8]]:
    """Return a core of nodata."""
    size = (tile.core.height, tile.core.width)
    return {layer.name: np.full((layer.num_bands, *size), NODATA, np.uint8) for layer in layers_of(wanted)}


def layers_of(wanted: Wanted) -> tuple[Layer, ...]:
    """Return the rasters that a store needs for what is wanted."""
    layers = [Layer("classes", "uint8", 1, NODATA)]
    if wanted.confidence:
        layers.append(Layer("confidence", "uint8", 1, NODATA))
    if wanted.probabilities:
        layers.append(Layer("probabilities", "uint8", len(wanted.class_values), NODATA))
    return tuple(layers)
