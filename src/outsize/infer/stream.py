"""Streams the tiles of a scene through a model: threads read ahead, the device computes, results come back in order.

    threads     read b+2 ..... read b+3 .....            into page-locked slots
    copy        ---- slot b+1 to the device ----
    compute     ------- normalise, model, decode b ------
    caller      crop b-1, hand it to the writer

A slot is one batch of windows: host arrays that readers fill and, on a GPU, device buffers beside them. It is filled
again only after its results were taken, so memory is a few slots, whatever the size of the scene.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from outsize.raster.read import SceneReader
from outsize.tiles.window import Tile, Window

Decode = Callable[[Tensor, Tensor], Mapping[str, Tensor]]  # logits, valid -> named uint8 tensors
Prepare = Callable[[Tensor, Tensor], Tensor]  # raw pixels, valid -> network input

_STRIP_ROWS = 1024  # rows that one thread reads at a time: several threads share the first window
_MAX_THREADS = 8  # more only wait for each other in the raster library
_SLOTS = {"cpu": 2, "cuda": 4}


@dataclass(frozen=True)
class Settings:
    """How tiles are run."""

    batch: int
    device: torch.device
    bf16: bool = False
    num_threads: int = 2


@dataclass
class Waits:
    """How long the caller's thread waited, and for whom: the slowest part of a prediction shows here."""

    reads_s: float = 0.0
    device_s: float = 0.0


@dataclass(frozen=True)
class TileResult:
    """The decoded core of one tile."""

    tile: Tile
    layers: Mapping[str, NDArray[np.uint8]]  # rows and columns last


def stream_tiles(
    model: nn.Module,
    reader: SceneReader,
    tiles: Sequence[Tile],
    *,
    prepare: Prepare,
    decode: Decode,
    settings: Settings,
    waits: Waits | None = None,
) -> Iterator[TileResult]:
    """Yield the decoded core of every tile, in order."""
    waits = waits or Waits()
    batches = deque(tiles[start : start + settings.batch] for start in range(0, len(tiles), settings.batch))
    num_slots = min(_SLOTS[settings.device.type], len(batches))
    free = [_Slot(reader, tiles[0].read, settings) for _ in range(num_slots)]
    filling: deque[tuple[_Slot, Sequence[Tile], list[Future[None]]]] = deque()
    running: deque[tuple[_Slot, Sequence[Tile]]] = deque()
    run = _Runner(model, prepare, decode, settings)
    with ThreadPoolExecutor(min(settings.num_threads, _MAX_THREADS), thread_name_prefix="read") as pool:
        try:
            while batches or filling or running:
                while free and batches:
                    slot, batch = free.pop(), batches.popleft()
                    filling.append((slot, batch, slot.fill(pool, reader, batch)))
                # half of the slots at the device, half being filled
                if filling and len(running) < max(1, num_slots // 2):
                    slot, batch, reads = filling.popleft()
                    start_s = time.perf_counter()
                    for read in reads:
                        read.result()
                    filled_s = time.perf_counter()
                    run(slot, len(batch))
                    waits.reads_s += filled_s - start_s
                    waits.device_s += time.perf_counter() - filled_s
                    running.append((slot, batch))
                else:
                    slot, batch = running.popleft()
                    start_s = time.perf_counter()
                    slot.wait()
                    waits.device_s += time.perf_counter() - start_s
                    yield from slot.results(batch)
                    free.append(slot)
        finally:
            for _, _, reads in filling:
                for read in reads:
                    read.cancel()


class _Slot:
    """Room for one batch of windows on the host, on the device, and for what comes back."""

    def __init__(self, reader: SceneReader, window: Window, settings: Settings) -> None:
        on_gpu = settings.device.type == "cuda"
        shape = (settings.batch, reader.info.num_bands, window.height, window.width)
        dtype = getattr(torch, reader.info.dtype)
        self.images = torch.empty(shape, dtype=dtype, pin_memory=on_gpu)
        self.valid = torch.empty((shape[0], *shape[2:]), dtype=torch.bool, pin_memory=on_gpu)
        self.device_images = torch.empty_like(self.images, device=settings.device) if on_gpu else self.images
        self.device_valid = torch.empty_like(self.valid, device=settings.device) if on_gpu else self.valid
        self.layers: dict[str, Tensor] = {}
        self.finished: torch.cuda.Event | None = None

    def fill(
        self, pool: ThreadPoolExecutor, reader: SceneReader, tiles: Sequence[Tile]
    ) -> list[Future[None]]:
        """Have the pool read the tiles' windows, in strips."""
        images, valid = self.images.numpy(), self.valid.numpy()
        futures = []
        for number, tile in enumerate(tiles):
            window = tile.read
            # a compressed file is decoded by threads of its own, which want large pieces
            step = window.height if reader.info.is_compressed else _STRIP_ROWS
            for row in range(0, window.height, step):
                rows = min(step, window.height - row)
                strip = Window(window.row + row, window.col, rows, window.width)
                into = images[number, :, row : row + rows], valid[number, row : row + rows]
                futures.append(pool.submit(reader.read_into, strip, *into))
        return futures

    def wait(self) -> None:
        """Wait for the device."""
        if self.finished is not None:
            self.finished.synchronize()

    def results(self, tiles: Sequence[Tile]) -> Iterator[TileResult]:
        """Cut the cores out."""
        for number, tile in enumerate(tiles):
            rows, cols = tile.core.within(tile.read).slices
            # views: each batch has layers of its own, which live as long as somebody holds a core of them
            cores = {name: layer.numpy()[number, ..., rows, cols] for name, layer in self.layers.items()}
            yield TileResult(tile, cores)


class _Runner:
    """Runs a filled slot through the model; on a GPU it only queues the work."""

    def __init__(self, model: nn.Module, prepare: Prepare, decode: Decode, settings: Settings) -> None:
        self._model, self._prepare, self._decode, self._settings = model, prepare, decode, settings
        self._copies = torch.cuda.Stream(settings.device) if settings.device.type == "cuda" else None
        if self._copies is not None:
            # The slots' buffers may be memory that work still queued (a training step) has yet to read.
            self._copies.wait_stream(torch.cuda.current_stream(settings.device))

    @torch.inference_mode()
    def __call__(self, slot: _Slot, num_tiles: int) -> None:
        """Compute the first `num_tiles` windows of a slot into its layers."""
        if self._copies is None:
            slot.layers = dict(self._compute(slot.images[:num_tiles], slot.valid[:num_tiles]))
            return
        compute = torch.cuda.current_stream(self._settings.device)
        # The slot's earlier batch has finished (its results were taken), so its buffers may be overwritten.
        with torch.cuda.stream(self._copies):
            slot.device_images[:num_tiles].copy_(slot.images[:num_tiles], non_blocking=True)
            slot.device_valid[:num_tiles].copy_(slot.valid[:num_tiles], non_blocking=True)
        compute.wait_stream(self._copies)
        layers = self._compute(slot.device_images[:num_tiles], slot.device_valid[:num_tiles])
        slot.layers = {
            # page-locked memory that a writer has let go of is used again, by torch's allocator
            name: torch.empty(layer.shape, dtype=layer.dtype, pin_memory=True).copy_(layer, non_blocking=True)
            for name, layer in layers.items()
        }
        slot.finished = compute.record_event()

    def _compute(self, images: Tensor, valid: Tensor) -> Mapping[str, Tensor]:
        inputs = self._prepare(images, valid).contiguous(memory_format=torch.channels_last)
        with torch.autocast(images.device.type, torch.bfloat16, enabled=self._settings.bf16):
            logits: Any = self._model(inputs)
        return self._decode(logits, valid)
