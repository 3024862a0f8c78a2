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
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from outsize.errors import ModelError, OutsizeError, explain, first_line
from outsize.measure.memory import ran_out
from outsize.measure.tensors import format_shapes, shapes_of
from outsize.measure.where import layer_of
from outsize.plan.plan import Passes
from outsize.ranks import ALONE, World
from outsize.raster.reading import SceneReader
from outsize.threads import Threads
from outsize.tiles.window import Tile, Window

NODATA = 255  # written where the scene has no valid pixel, or the model no answer
UNANSWERED = "unanswered"  # among the outputs of decode: how many pixels of each sample got no answer

# logits, valid -> named uint8 tensors, and perhaps, as UNANSWERED, a number of pixels per sample
Decode = Callable[[Tensor, Tensor], Mapping[str, Tensor]]
Prepare = Callable[[Tensor, Tensor], Tensor]  # raw pixels, valid -> network input

_STRIP_ROWS = 1024  # rows that one thread reads at a time: several threads share the first window
_MAX_THREADS = 8  # more only wait for each other in the raster library
_REMEDY = "free host memory, or set limits.tile_px lower"
_SLOTS = {"cpu": 2, "cuda": 4}


@dataclass(frozen=True)
class Settings:
    """How tiles are run."""

    batch: int
    device: torch.device
    bf16: bool = False
    num_threads: int = 2
    dtype: torch.dtype = torch.float32  # of the model's weights, and so of its input
    channels_last: bool = True  # False: the model runs only where a batch lies plane after plane
    passes: Passes | None = None  # over the tiles, for a model that looks at the whole picture
    world: World = ALONE  # whose ranks share the tiles of a scene
    folder: Path | None = None  # for what is kept between passes and does not fit in memory

    @property
    def precision(self) -> str:
        """What is computed in, in the words of a job where it has one for it."""
        names = {torch.float32: "fp32", torch.float64: "fp64", torch.float16: "fp16"}
        return "bf16" if self.bf16 else names.get(self.dtype, str(self.dtype).removeprefix("torch."))


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
    unanswered: NDArray[np.bool_] | None = None  # valid pixels without an answer; None where there are none


def result_of(
    tile: Tile, number: int, core: Window, layers: Mapping[str, Tensor], valid: Tensor
) -> TileResult:
    """Cut the core out of a sample whose layers and valid pixels are on the host."""
    rows, cols = core.slices
    # views: each batch has layers of its own, which live as long as somebody holds a core of them
    cores = {
        name: each.numpy()[number, ..., rows, cols] for name, each in layers.items() if name != UNANSWERED
    }
    unanswered = None
    if UNANSWERED in layers and int(
        layers[UNANSWERED][number]
    ):  # which is rare, and may lie outside the core
        unanswered = valid.cpu().numpy()[number, rows, cols] & (cores["classes"] == NODATA)
    return TileResult(tile, cores, unanswered)


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
    """Yield the decoded core of every tile; in order, but that windows of another shape wait for their like."""
    waits = waits or Waits()
    batches = _batches(tiles, settings.batch)
    num_slots = min(_SLOTS[settings.device.type], len(batches))
    largest_px = max((tile.read.num_px for tile in tiles), default=0)
    free = [_Slot(reader, largest_px, settings) for _ in range(num_slots)]
    filling: deque[tuple[_Slot, Sequence[Tile], list[Future[None]]]] = deque()
    running: deque[tuple[_Slot, Sequence[Tile]]] = deque()
    run = _Runner(model, prepare, decode, settings)
    with Threads(min(settings.num_threads, _MAX_THREADS), "read", "reads a scene", _REMEDY) as pool:
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
                        pool.result(read)
                    filled_s = time.perf_counter()
                    run(slot)
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


def _batches(tiles: Sequence[Tile], size: int) -> deque[Sequence[Tile]]:
    """Put tiles together whose windows have one shape: those that end with the scene may be shorter than the others."""
    batches: deque[Sequence[Tile]] = deque()
    begun: dict[tuple[int, int], list[Tile]] = {}
    for tile in tiles:
        shape = tile.read.height, tile.read.width
        begun.setdefault(shape, []).append(tile)
        if len(begun[shape]) == size:
            batches.append(begun.pop(shape))
    batches.extend(begun.values())
    return batches


class _Slot:
    """Room for one batch of windows on the host, on the device, and for what comes back."""

    def __init__(self, reader: SceneReader, window_px: int, settings: Settings) -> None:
        on_gpu = settings.device.type == "cuda"
        self.num_bands = reader.info.num_bands
        num_px, dtype = settings.batch * window_px, getattr(torch, reader.info.dtype)
        self._images = torch.empty(num_px * self.num_bands, dtype=dtype, pin_memory=on_gpu)
        self._valid = torch.empty(num_px, dtype=torch.bool, pin_memory=on_gpu)
        self._device_images = (
            torch.empty_like(self._images, device=settings.device) if on_gpu else self._images
        )
        self._device_valid = torch.empty_like(self._valid, device=settings.device) if on_gpu else self._valid
        self.layers: dict[str, Tensor] = {}
        self.finished: torch.cuda.Event | None = None

    def shaped(self, num: int, window: Window) -> None:
        """Lay the room out for so many windows of one shape."""
        shape, num_px = (num, window.height, window.width), num * window.num_px
        images = (num, self.num_bands, *shape[1:])
        self.images, self.device_images = (
            each[: num_px * self.num_bands].view(images) for each in (self._images, self._device_images)
        )
        self.valid, self.device_valid = (
            each[:num_px].view(shape) for each in (self._valid, self._device_valid)
        )

    def fill(self, pool: Threads, reader: SceneReader, tiles: Sequence[Tile]) -> list[Future[None]]:
        """Have the pool read the tiles' windows, in strips."""
        self.shaped(len(tiles), tiles[0].read)
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
            yield result_of(tile, number, tile.core.within(tile.read), self.layers, self.valid)


class _Runner:
    """Runs a filled slot through the model; on a GPU it only queues the work."""

    def __init__(self, model: nn.Module, prepare: Prepare, decode: Decode, settings: Settings) -> None:
        self._model, self._prepare, self._decode, self._settings = model, prepare, decode, settings
        self._copies = torch.cuda.Stream(settings.device) if settings.device.type == "cuda" else None
        if self._copies is not None:
            # The slots' buffers may be memory that work still queued (a training step) has yet to read.
            self._copies.wait_stream(torch.cuda.current_stream(settings.device))

    @torch.inference_mode()
    def __call__(self, slot: _Slot) -> None:
        """Compute the windows of a slot into its layers."""
        if self._copies is None:
            slot.layers = dict(self._compute(slot.images, slot.valid))
            return
        compute = torch.cuda.current_stream(self._settings.device)
        # The slot's earlier batch has finished (its results were taken), so its buffers may be overwritten.
        with torch.cuda.stream(self._copies):
            slot.device_images.copy_(slot.images, non_blocking=True)
            slot.device_valid.copy_(slot.valid, non_blocking=True)
        compute.wait_stream(self._copies)
        layers = self._compute(slot.device_images, slot.device_valid)
        slot.layers = {
            # page-locked memory that a writer has let go of is used again, by torch's allocator
            name: torch.empty(layer.shape, dtype=layer.dtype, pin_memory=True).copy_(layer, non_blocking=True)
            for name, layer in layers.items()
        }
        slot.finished = compute.record_event()

    def _compute(self, images: Tensor, valid: Tensor) -> Mapping[str, Tensor]:
        return self._decode(answer(self._model, self._prepare(images, valid), self._settings), valid)


def answer(model: nn.Module, inputs: Tensor, settings: Settings) -> Tensor:
    """Run a model on normalised windows, in its own type and layout; what it raises is reported in one line."""
    layout = torch.channels_last if settings.channels_last else torch.contiguous_format
    inputs = inputs.to(settings.dtype).contiguous(memory_format=layout)
    try:
        with torch.autocast(inputs.device.type, torch.bfloat16, enabled=settings.bf16):
            logits: Tensor = model(inputs)
    except (OutsizeError, MemoryError):
        raise
    except Exception as error:  # a model may raise anything
        if isinstance(error, RuntimeError) and ran_out(error):
            raise
        layer = layer_of(error, model)
        raise ModelError(
            explain(
                f"{type(model).__name__} fails on a batch of {format_shapes(shapes_of(inputs))}",
                first_line(error) + (f" in layer {layer}" if layer else ""),
                "a model that runs on batches of windows",
                "mend its forward, or give windows of another size by limits.tile_px",
            )
        ) from error
    return logits
