"""The tiles of a scene, streamed one by one or in passes: all but the last look at the whole, the last one predicts."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from outsize.data.inputs import reach_px
from outsize.infer.passes.keep import Keep
from outsize.infer.passes.program import program_for
from outsize.infer.passes.run import PassRun
from outsize.infer.stream import Decode, Prepare, Settings, TileResult, Waits, result_of, stream_tiles
from outsize.models import input_maps
from outsize.plan.plan import Passes
from outsize.plan.predict import cores_of
from outsize.progress import Reporter
from outsize.raster.disk import make_folder, need_space
from outsize.raster.reading import SceneInfo, SceneReader
from outsize.tiles.grid import redundancy
from outsize.tiles.window import Tile, Window

_LOOK_PX = 64  # of a corner of the scene, to see how many bands the model is given


@contextmanager
def streaming(
    model: nn.Module,
    reader: SceneReader,
    tiles: Sequence[Tile],
    *,
    prepare: Prepare,
    decode: Decode,
    settings: Settings,
    reporter: Reporter | None = None,
    waits: Waits | None = None,
) -> Iterator[Iterator[TileResult]]:
    """Give the decoded cores of tiles: one by one; where the plan has passes, after all but the last of them."""
    plan, waits = settings.passes, waits or Waits()
    if plan is None or not tiles:
        yield stream_tiles(
            model, reader, tiles, prepare=prepare, decode=decode, settings=settings, waits=waits
        )
        return
    source = _Source(reader, prepare, settings, reach_px(input_maps(model)), waits)
    size = reader.info.height, reader.info.width
    program = program_for(model, source.num_channels, size, plan.stride_px)
    cores_px = cores_of(program.laid, plan.core_px, plan.tile_bytes)
    with _place(plan, settings.folder) as place:
        keep = Keep(place)
        try:
            run = PassRun(program, source.read, keep, settings.device, cores_px=cores_px, bf16=settings.bf16)
            _look(run, plan, reader.info.path.name, reporter or Reporter("quiet"))
            yield _predicted(run, source, tiles, decode)
        finally:
            keep.close()


def work_of_scene(tiles: Sequence[Tile], info: SceneInfo, settings: Settings) -> dict[str, Any]:
    """Return what a result says of the work: how much is computed for each pixel, and in how many passes."""
    if settings.passes is not None:
        return {"redundancy": settings.passes.work, "num_passes": settings.passes.num}
    return {"redundancy": round(redundancy(tiles, info.height, info.width), 4)}


def _look(run: PassRun, plan: Passes, name: str, reporter: Reporter) -> None:
    if not run.num_early:
        return
    with reporter.bar(f"look at {name}", run.num_early, "tile", activity="look at scenes") as bar:
        run.early(lambda number: bar.advance(at=f"pass {number + 1} of {plan.num}"))


def _predicted(run: PassRun, source: _Source, tiles: Sequence[Tile], decode: Decode) -> Iterator[TileResult]:
    by_core = {tile.core: tile for tile in tiles}
    for core, logits in run.last(list(by_core)):
        with torch.inference_mode():
            valid = source.valid(core)
            layers = {name: layer.cpu() for name, layer in decode(logits, valid).items()}
        yield result_of(by_core[core], 0, core.within(core), layers, valid)


@contextmanager
def _place(plan: Passes, folder: Path | None) -> Iterator[Path | None]:
    """Give the folder for maps that lie on disk; it is gone afterwards."""
    if not plan.on_disk:
        yield None
        return
    if folder is not None:
        make_folder(folder)
    with TemporaryDirectory(prefix="passes-", dir=folder) as place:
        need_space(Path(place), plan.kept_bytes, "the maps between passes")
        yield Path(place)


class _Source:
    """Windows of a scene as the model is given them: read, normalised, filled up with zeros past the scene's end."""

    def __init__(
        self, reader: SceneReader, prepare: Prepare, settings: Settings, margin_px: int, waits: Waits
    ) -> None:
        self._reader, self._prepare, self._settings = reader, prepare, settings
        self._margin_px, self._waits = margin_px, waits  # maps among the inputs look around each pixel
        self._layout = torch.channels_last if settings.channels_last else torch.contiguous_format
        self._scene = Window(0, 0, reader.info.height, reader.info.width)
        corner = self._scene.intersect(Window(0, 0, _LOOK_PX, _LOOK_PX))
        self.num_channels = int(self.read(corner).shape[1])  # that the model is given of each pixel

    @torch.inference_mode()
    def read(self, window: Window) -> Tensor:
        """Return a window of the model's input."""
        inside = window.intersect(self._scene)
        if not inside.num_px:
            return torch.zeros(
                (1, self.num_channels, window.height, window.width),
                dtype=self._settings.dtype,
                device=self._settings.device,
            )
        more = self._margin_px
        wide = Window(
            inside.row - more, inside.col - more, inside.height + 2 * more, inside.width + 2 * more
        ).intersect(self._scene)
        inputs = self._prepare(*self._raw(wide))[(..., *inside.within(wide).slices)].to(self._settings.dtype)
        inputs = F.pad(inputs, (0, window.col_end - inside.col_end, 0, window.row_end - inside.row_end))
        return inputs.to(memory_format=self._layout)

    def valid(self, window: Window) -> Tensor:
        """Return which pixels of a window hold data."""
        return self._raw(window)[1]

    def _raw(self, window: Window) -> tuple[Tensor, Tensor]:
        start_s = time.perf_counter()
        info, size = self._reader.info, (window.height, window.width)
        images = torch.empty((1, info.num_bands, *size), dtype=getattr(torch, info.dtype))
        valid = torch.empty((1, *size), dtype=torch.bool)
        self._reader.read_into(window, images[0].numpy(), valid[0].numpy())
        self._waits.reads_s += time.perf_counter() - start_s
        return images.to(self._settings.device), valid.to(self._settings.device)
