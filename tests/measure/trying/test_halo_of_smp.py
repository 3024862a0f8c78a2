"""Networks of segmentation-models-pytorch: three are tiled exactly, proved by NaN; the others are named."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.conftest import write_job
from torch import Tensor, nn

from outsize.card import Card, load_checkpoint, save_checkpoint
from outsize.commands.predict import predict
from outsize.commands.results.verify import verify
from outsize.data.catalogue import open_data
from outsize.data.split import write_split
from outsize.data.statistics import BandStatistics
from outsize.data.synthetic.scenes import CLASSES
from outsize.errors import PlanError
from outsize.infer.compare import tiled_difference
from outsize.infer.prepare import make_prepare
from outsize.job import ClassSpec, LimitsSection, load_job
from outsize.measure.facts import gather_facts
from outsize.measure.graphs.exporting import example_shape, trace
from outsize.measure.machine import look_at_machine
from outsize.measure.trying.probe import probe_halo
from outsize.models import build_model
from outsize.plan.predict.choose import choose_predict
from outsize.progress import Reporter
from outsize.raster.reading import SceneReader, describe
from outsize.tiles.halo import Halo, Reach, derive_halo
from outsize.tiles.window import Window

NEEDS_PX = {
    "Unet": (281, 250, 288, 256),
    "UnetPlusPlus": (281, 250, 288, 256),
    "Linknet": (249, 218, 256, 224),
}
STRIDE_PX = 32
# UNet++ is the largest of them
ARCHITECTURES = [
    each if each != "UnetPlusPlus" else pytest.param(each, marks=pytest.mark.long) for each in NEEDS_PX
]


@cache
def net(architecture: str) -> nn.Module:
    torch.manual_seed(1)
    # The decoder's width changes no reach; a narrow one is quick.
    narrow = {} if architecture == "Linknet" else {"decoder_channels": (16, 8, 8, 4, 4)}
    model = build_model(f"smp:{architecture}/resnet18", num_classes=3, in_channels=4, **narrow)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):  # statistics that differ from the start values
            nn.init.uniform_(module.running_mean, -0.3, 0.3)  # type: ignore[arg-type]
            nn.init.uniform_(module.running_var, 0.5, 2)  # type: ignore[arg-type]
    return model.double().eval()


@cache
def halo_of(architecture: str) -> Halo:
    return derive_halo(trace(net(architecture), example_shape(4)))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_need(architecture: str) -> None:
    before_px, after_px, aligned_before_px, aligned_after_px = NEEDS_PX[architecture]
    halo = halo_of(architecture)
    assert halo.exact
    assert halo.stride_px == STRIDE_PX == net(architecture).stride
    assert halo.rows == halo.cols == Reach(before_px, after_px)
    assert halo.aligned.rows == halo.aligned.cols == Reach(aligned_before_px, aligned_after_px)


def core_is_finite(model: nn.Module, strip: Tensor, first: int, past: int, core: slice, axis: int) -> bool:
    poisoned = torch.full_like(strip, float("nan"))
    inside = (..., slice(first, past), slice(None)) if axis == 0 else (..., slice(first, past))
    poisoned[inside] = strip[inside]
    with torch.inference_mode():
        logits = model(poisoned)
    return bool(logits[(..., core, slice(None)) if axis == 0 else (..., core)].isfinite().all())


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_sufficient_and_tight_along_each_axis(architecture: str, axis: int) -> None:
    """A strip one stride across probes one axis at a twentieth of the cost of a square."""
    model, halo = net(architecture), halo_of(architecture)
    start = halo.aligned.rows.before_px + STRIDE_PX
    core = slice(start, start + STRIDE_PX)
    length_px = core.stop + halo.aligned.rows.after_px + STRIDE_PX
    shape = (length_px, STRIDE_PX) if axis == 0 else (STRIDE_PX, length_px)
    strip = torch.randn(1, 4, *shape, dtype=torch.float64)
    first, past = core.start - halo.rows.before_px, core.stop + halo.rows.after_px
    assert core_is_finite(model, strip, first, past, core, axis)
    assert not core_is_finite(model, strip, first + 1, past, core, axis)
    assert not core_is_finite(model, strip, first, past - 1, core, axis)


@pytest.mark.long
def test_sufficient_and_tight_in_the_plane() -> None:
    result = probe_halo(net("Linknet"), halo_of("Linknet"))
    assert result.sufficient
    assert result.tight


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_tiles_equal_the_whole_along_each_axis(architecture: str, axis: int) -> None:
    core_px = 320  # more than the halo: the tile in the middle touches neither end
    shape = (3 * core_px - 5, 27) if axis == 0 else (27, 3 * core_px - 5)
    picture = torch.randn(1, 4, *shape, dtype=torch.float64)
    difference = tiled_difference(net(architecture), picture, core_px, halo_of(architecture))
    assert difference.relative <= 1e-11


@pytest.mark.long
def test_an_interior_tile_equals_the_whole() -> None:
    model, halo = net("Linknet"), halo_of("Linknet").aligned
    row, col = halo.rows.before_px + STRIDE_PX, halo.cols.before_px + 2 * STRIDE_PX
    height = row + STRIDE_PX + halo.rows.after_px + STRIDE_PX - 3  # no multiple of the stride
    width = col + STRIDE_PX + halo.cols.after_px + STRIDE_PX
    picture = torch.randn(1, 4, height, width, dtype=torch.float64)
    rows = slice(STRIDE_PX, row + STRIDE_PX + halo.rows.after_px)
    cols = slice(2 * STRIDE_PX, col + STRIDE_PX + halo.cols.after_px)
    with torch.inference_mode():
        whole = model(picture)[..., row : row + STRIDE_PX, col : col + STRIDE_PX]
        before_px, end_px = halo.rows.before_px, halo.rows.before_px + STRIDE_PX
        tile = model(picture[..., rows, cols])[..., before_px:end_px, before_px:end_px]
    assert float((tile - whole).abs().max() / whole.abs().max()) <= 1e-11


REFUSED = {
    "smp:DeepLabV3Plus/resnet18": "decoder.aspp.0.convs.4.0 (adaptive_avg_pool)",
    "smp:FPN/resnet18": "decoder.seg_blocks.0.block.0.block.1 (group_norm)",
    "smp:Unet/efficientnet-b0": "encoder._blocks.0 (adaptive_avg_pool)",
}


@pytest.mark.long
@pytest.mark.parametrize("name", REFUSED)
def test_what_looks_everywhere_is_refused_by_the_name_of_the_layer(name: str) -> None:
    model = build_model(name, num_classes=3, in_channels=4)
    facts = gather_facts(model, 4, look_at_machine(torch.device("cpu")), bf16=False)
    with pytest.raises(PlanError, match="cannot be tiled exactly") as caught:
        choose_predict(facts, LimitsSection(), (4000, 4000))
    assert REFUSED[name] in str(caught.value)
    assert "limits.allow_approximate" in str(caught.value)
    plan = choose_predict(facts, LimitsSection(allow_approximate=True), (4000, 4000))
    assert not plan.exact
    assert any(REFUSED[name] in reason for reason in plan.why)


SMALL, LARGE = ("limits.tile_px=64",), ("limits.tile_px=512",)


@pytest.fixture
def run(tmp_path: Path, scenes: Path) -> Path:
    """A run of a model that cannot be tiled exactly."""
    torch.manual_seed(0)
    card = Card(
        task="segment",
        model="smp:FPN/resnet18",
        options={},
        classes=tuple(ClassSpec(name=each.name, value=each.value) for each in CLASSES),
        bands=("blue", "green", "red", "nir"),
        dtype="uint16",
        statistics=BandStatistics((800.0,) * 4, (500.0,) * 4),
    )
    path = tmp_path / "run"
    path.mkdir()
    data = load_job(write_job(path / "job.toml", scenes)).data
    write_split(path / "split.json", open_data(data, seed=0, halo_px=0, cache=path / "labels"))
    save_checkpoint(path / "checkpoints" / "best.safetensors", card.build(), card)
    return path


@pytest.mark.long
def test_approximate_with_the_measured_difference(run: Path, scenes: Path) -> None:
    images, quiet = [scenes / "test-2.tif"], Reporter("quiet")
    assert load_job(run / "job.toml").limits.allow_approximate is False
    overrides = ("limits.passes=false", *SMALL)
    with pytest.raises(PlanError, match=r"decoder\.seg_blocks\.0"):
        predict(run, images, out=None, overrides=overrides, device_name="cpu", reporter=quiet)
    overrides = ("limits.allow_approximate=true", "limits.halo_px=32", *SMALL)
    [result] = predict(run, images, out=None, overrides=overrides, device_name="cpu", reporter=quiet)
    assert result["exact"] is False
    assert 1e-4 < result["relative_difference"] < 1
    assert Path(result["map"]).is_file()
    proof = verify(run, overrides=overrides, device_name="cpu", reporter=quiet)
    assert not proof["tiled_equals_whole"]["float64"]["passed"]


@pytest.mark.long
def test_cut_and_exact_in_passes(run: Path, scenes: Path) -> None:
    images, quiet = [scenes / "test-2.tif"], Reporter("quiet")
    [result] = predict(run, images, out=None, overrides=SMALL, device_name="cpu", reporter=quiet)
    assert result["exact"] is True
    assert result["num_passes"] == 4  # its pyramid normalises by groups three times in a row
    assert result["num_tiles"] > 1
    proof = verify(run, overrides=SMALL, device_name="cpu", reporter=quiet)
    assert all(each["passed"] for each in proof["tiled_equals_whole"].values())


def test_a_picture_in_one_window_is_exact_without_leave(run: Path, scenes: Path) -> None:
    images, quiet = [scenes / "test-2.tif"], Reporter("quiet")
    [result] = predict(run, images, out=None, overrides=LARGE, device_name="cpu", reporter=quiet)
    assert result["exact"] is True
    assert "relative_difference" not in result
    proof = verify(run, overrides=LARGE, device_name="cpu", reporter=quiet)
    assert proof["exact"]
    assert proof["tiled_equals_whole"] == {}
    info = describe(images[0])
    model, card = load_checkpoint(run / "checkpoints" / "best.safetensors")
    with SceneReader(info) as reader:
        raster = reader.read(Window(0, 0, info.height, info.width))
    pixels, valid = (torch.from_numpy(array)[None] for array in (raster.pixels, raster.valid))
    with torch.inference_mode():
        whole = model.eval()(make_prepare(card.bands, info, card.statistics)(pixels, valid)).argmax(1)
    with SceneReader(describe(Path(result["map"]))) as reader:
        found = reader.read(Window(0, 0, info.height, info.width)).pixels[0]
    values = np.array([each.value for each in card.classes])[whole[0].numpy()]
    assert (found == values)[raster.valid].mean() > 0.9999  # but for ties in the last digit
