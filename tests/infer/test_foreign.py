"""Modules that were not written for outsize: what they return, what they compute in, how they want to be called."""

from __future__ import annotations

import re
import warnings
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import outsize
from outsize.errors import ModelError, OutsizeError
from outsize.infer.foreign import called_so, look_at

_SIZE = (48, 64)


@pytest.fixture
def scene(tmp_path: Path) -> Path:
    folder = tmp_path / "given"
    folder.mkdir()
    pixels = np.random.default_rng(0).normal(size=(4, *_SIZE)).astype(np.float32)
    with rasterio.open(
        folder / "scene.tif", "w", driver="GTiff", count=4, height=_SIZE[0], width=_SIZE[1], dtype="float32"
    ) as file:
        file.write(pixels)
    return folder / "scene.tif"


def _pixels(path: Path) -> Tensor:
    with rasterio.open(path) as file:
        return torch.from_numpy(file.read())[None]


def _map(path: Path) -> NDArray[np.uint8]:
    with rasterio.open(path) as file:
        return np.asarray(file.read(1))


class Net(nn.Module):
    """Logits by two convolutions, returned in the form that is asked for."""

    def __init__(self, num_logits: int, form: Callable[[Tensor], Any] = lambda logits: logits) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.body, self.head = nn.Conv2d(4, 8, 3, padding=1), nn.Conv2d(8, num_logits, 3, padding=1)
        self.form = form

    def forward(self, images: Tensor) -> Any:
        """Return logits in some form."""
        return self.form(self.head(self.body(images).relu()))


_TILES = {"tile_px": 32}


@pytest.mark.parametrize("limits", [{}, _TILES])
def test_one_logit_is_a_sigmoid_and_a_threshold(scene: Path, tmp_path: Path, limits: dict[str, Any]) -> None:
    model = Net(1)
    with torch.no_grad():
        share = model(_pixels(scene)).sigmoid()[0, 0].numpy()
    maps = {}
    for threshold in (None, 0.4, 0.6):
        target = tmp_path / f"{threshold}.tif"
        outsize.predict(model, scene, target, limits=limits, device="cpu", threshold=threshold)
        maps[threshold] = _map(target)
        assert np.array_equal(maps[threshold], share > (threshold or 0.5))
    assert set(np.unique(maps[None])) == {0, 1}
    assert maps[0.4].sum() > maps[None].sum() > maps[0.6].sum()


def test_an_only_answer_that_is_a_probability_is_not_squashed_twice(scene: Path, tmp_path: Path) -> None:
    plain, squashed = Net(1), Net(1, torch.sigmoid)
    outsize.predict(plain, scene, tmp_path / "a.tif", device="cpu", threshold=0.55)
    done = outsize.predict(squashed, scene, tmp_path / "b.tif", device="cpu", threshold=0.55)
    assert done["output"] == "probabilities by sigmoid, taken back to logits"
    assert np.array_equal(_map(tmp_path / "a.tif"), _map(tmp_path / "b.tif"))


def test_a_threshold_that_nothing_is_compared_with_is_refused(scene: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"threshold 0\.3 does not fit the model: found a logit per class"):
        outsize.predict(Net(3), scene, tmp_path / "map.tif", threshold=0.3)
    with pytest.raises(ModelError, match=r"threshold is no probability: found 7"):
        outsize.predict(Net(1), scene, tmp_path / "map.tif", threshold=7)
    with pytest.raises(TypeError, match="unknown argument 'treshold'"):
        outsize.predict(Net(1), scene, tmp_path / "map.tif", treshold=0.3)  # type: ignore[call-arg]
    assert [each.name for each in tmp_path.iterdir()] == ["given"]


_FORMS: dict[str, tuple[Callable[[Tensor], Any], str]] = {
    "torchvision": (lambda logits: OrderedDict(out=logits, aux=-logits), "['out'] of ['out'], ['aux']"),
    "aux first": (lambda logits: {"aux": -logits, "out": logits}, "['out'] of ['aux'], ['out']"),
    "other name": (lambda logits: {"logits": logits, "loss": None}, "['logits'] of ['logits'], ['loss']"),
    "tuple": (lambda logits: (logits, logits.mean((2, 3))), "[0] of [0], [1]"),
    "second fits": (lambda logits: [logits[..., ::2, ::2], logits], "[1] of [0], [1]"),
    "deep": (lambda logits: (logits.mean(), {"maps": [logits]}), "[1]['maps'][0] of [0], [1]['maps'][0]"),
}


@pytest.mark.parametrize("form", _FORMS)
def test_the_logits_are_found_in_what_is_returned(scene: Path, tmp_path: Path, form: str) -> None:
    make, said = _FORMS[form]
    model = Net(3, make)
    names = [name for name, _ in model.named_modules()]
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="the model returns several maps")
        done = outsize.predict(model, scene, tmp_path / "map.tif", limits=_TILES, device="cpu")
    assert done["output"] == said
    assert done["exact"]
    assert done["num_tiles"] == 4
    with torch.no_grad():
        expected = Net(3)(_pixels(scene)).argmax(1)[0].numpy()
    assert np.array_equal(_map(tmp_path / "map.tif"), expected)
    # and the module is as it was
    assert not isinstance(model(_pixels(scene)), Tensor)
    assert [name for name, _ in model.named_modules()] == names


def test_several_maps_are_warned_of(scene: Path, tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=r"several maps: \[0\] is taken for its logits, not \[1\]"):
        outsize.predict(Net(3, lambda logits: (logits, -logits)), scene, tmp_path / "map.tif", device="cpu")


@pytest.mark.parametrize(
    ("form", "found"),
    [
        (lambda logits: {"out": logits[..., ::2, ::2]}, "2 x 3 x 384 x 576"),
        (lambda _: "a map", "a str"),
        (lambda _: {}, "nothing"),
    ],
)
def test_what_holds_no_map_is_one_line(
    scene: Path, tmp_path: Path, form: Callable[[Tensor], Any], found: str
) -> None:
    with pytest.raises(ModelError, match=f"^model's output is no map of logits: found {found}, needed .*"):
        outsize.predict(Net(3, form), scene, tmp_path / "new" / "map.tif", device="cpu")
    assert [each.name for each in tmp_path.iterdir()] == ["given"]


def test_ids_of_classes_are_not_taken_for_one_logit(scene: Path, tmp_path: Path) -> None:
    with pytest.raises(
        ModelError, match=r"^the model returns ids of classes: found a map of int64, needed logits"
    ):
        outsize.predict(
            Net(3, lambda x: x.argmax(1, keepdim=True)), scene, tmp_path / "map.tif", device="cpu"
        )
    outsize.predict(Net(3, lambda x: x[:, :1] > 0), scene, tmp_path / "map.tif", device="cpu")
    with torch.no_grad():
        expected = (Net(3)(_pixels(scene))[0, 0] > 0).numpy()
    assert np.array_equal(_map(tmp_path / "map.tif"), expected)


@pytest.mark.parametrize(
    ("dtype", "precision", "close"),
    [(torch.float64, "fp64", 0.0), (torch.bfloat16, "bf16", 0.05), (torch.float16, "fp16", 0.02)],
)
def test_a_module_computes_in_the_type_of_its_weights(
    scene: Path, tmp_path: Path, dtype: torch.dtype, precision: str, close: float
) -> None:
    model = Net(3).to(dtype)
    done = outsize.predict(model, scene, tmp_path / "map.tif", limits=_TILES, device="cpu")
    assert done["precision"] == ("bfloat16" if precision == "bf16" else precision)
    with torch.no_grad():
        expected = model(_pixels(scene).to(dtype)).argmax(1)[0].numpy()
    assert (_map(tmp_path / "map.tif") != expected).mean() <= close
    assert next(model.parameters()).dtype == dtype


def test_precision_is_refused_where_it_does_not_fit(scene: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="bf16 does not fit the module: found weights of float64"):
        outsize.predict(Net(3).double(), scene, tmp_path / "map.tif", device="cpu", precision="bf16")
    with pytest.raises(ModelError, match="unknown precision: found 'fp8', needed one of auto, fp32, bf16"):
        outsize.predict(Net(3), scene, tmp_path / "map.tif", device="cpu", precision="fp8")
    done = outsize.predict(Net(3), scene, tmp_path / "map.tif", device="cpu", precision="bf16")
    assert done["precision"] == "bf16"


class Joins(nn.Module):
    """Filters every channel alike, by a view that only samples plane after plane allow."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.body, self.each = nn.Conv2d(4, 8, 3, padding=1), nn.Conv2d(1, 1, 3, padding=1)
        self.head = nn.Conv2d(8, 3, 1)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits of three classes."""
        x = self.body(images)
        samples, channels, height, width = x.shape
        x = self.each(x.view(samples * channels, 1, height, width)).view(samples, channels, height, width)
        logits: Tensor = self.head(x)
        return logits


def test_a_view_across_samples_and_channels_works(scene: Path, tmp_path: Path) -> None:
    model = Joins()
    done = outsize.predict(model, scene, tmp_path / "map.tif", limits=_TILES, device="cpu")
    assert done["num_tiles"] == 4  # several in a batch, where the view matters
    two = torch.cat([_pixels(scene)] * 2)
    with torch.no_grad():
        expected = model(two).argmax(1)[0].numpy()  # its own batches go on to work
    assert np.array_equal(_map(tmp_path / "map.tif"), expected)


def test_the_layout_of_the_weights_is_put_back(scene: Path, tmp_path: Path) -> None:
    model = Net(3)
    strides = [each.stride() for each in model.parameters()]
    outsize.predict(model, scene, tmp_path / "map.tif", device="cpu")
    assert [each.stride() for each in model.parameters()] == strides


class One(Net):
    """Takes one sample at a time."""

    def forward(self, images: Tensor) -> Any:
        """Return logits."""
        return super().forward(images).view(1, 3, *images.shape[-2:])


def test_one_sample_at_a_time_is_enough_for_one_window(scene: Path, tmp_path: Path) -> None:
    outsize.predict(One(3), scene, tmp_path / "map.tif", device="cpu")
    with torch.no_grad():
        assert np.array_equal(_map(tmp_path / "map.tif"), Net(3)(_pixels(scene)).argmax(1)[0].numpy())


class Fails(nn.Module):
    """Raises in a layer, but not for shapes alone: what it raises depends on numbers."""

    def __init__(self, error: type[BaseException] | None = ValueError) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(4, 3, 1), Picky())
        self.body[1].error = error

    def forward(self, images: Tensor) -> Tensor:
        """Return logits, or fail."""
        logits: Tensor = self.body(images)
        return logits


class Picky(nn.Module):
    """Passes everything on, but no real picture of more than 40 rows."""

    error: type[BaseException] | None = None

    def forward(self, x: Tensor) -> Tensor:
        """Return what comes in."""
        real = type(x) is Tensor and not torch.compiler.is_exporting() and x.shape[-2] == _SIZE[0]
        if real and self.error is not None:
            raise self.error("not this\npicture")
        return x


def test_an_error_in_a_layer_is_one_line_and_leaves_nothing(scene: Path, tmp_path: Path) -> None:
    folder = tmp_path / "new"
    with pytest.raises(OutsizeError) as caught:
        outsize.predict(
            Fails(), scene, folder / "map.tif", polygons=tmp_path / "else" / "map.gpkg", device="cpu"
        )
    said = str(caught.value)
    assert re.search(
        r"Fails fails on a batch of 1x4x48x64: found ValueError: not this in layer body\.1", said
    )
    assert "\n" not in said
    assert [each.name for each in tmp_path.iterdir()] == ["given"]


@pytest.mark.parametrize("error", [MemoryError, RuntimeError, KeyboardInterrupt])
def test_no_error_leaves_a_hidden_folder(scene: Path, tmp_path: Path, error: type[BaseException]) -> None:
    with pytest.raises((MemoryError, ModelError, KeyboardInterrupt)):
        outsize.predict(Fails(error), scene, tmp_path / "map.tif", device="cpu")
    assert [each.name for each in tmp_path.iterdir()] == ["given"]


def test_a_module_is_called_in_its_manner_only_inside_the_block() -> None:
    model = Net(3, lambda logits: (logits.mean(), logits.softmax(1)))
    manner = look_at(model.train(), 4)
    assert (manner.leaf, manner.num_logits, manner.squashed) == (1, 3, "softmax")
    images = torch.randn(1, 4, 16, 16)
    with called_so(model, manner):
        inside = model.eval()(images)
    assert torch.allclose(inside.softmax(1), model(images)[1], atol=1e-6)
    assert model.training
