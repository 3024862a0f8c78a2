"""Tracing: the graph's contents, the model left as it was, and loud failure where export cannot follow."""

import copy
import logging
import pickle
import warnings

import pytest
import torch
from torch import Tensor, nn

from outsize.errors import TraceError
from outsize.measure.graphs.exporting import example_shape, trace
from outsize.measure.graphs.opnames import _KINDS, canonical
from outsize.models import build_model
from outsize.tiles.halo import Reach, derive_halo


class Shared(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Sequential(nn.Conv2d(3, 3, 3, padding=1), nn.ReLU(inplace=True))

    def forward(self, x: Tensor) -> Tensor:
        return self.block(self.block(x)) + x  # type: ignore[no-any-return]


def test_ops_name_module_call_shape_and_settings() -> None:
    graph = trace(Shared(), (1, 3, 32, 48))
    run = [op for op in graph.ops if op.kind not in ("input", "parameter")]
    assert [(op.kind, op.module, op.call) for op in run] == [
        ("conv", "block.0", 0),
        ("relu", "block.1", 0),
        ("conv", "block.0", 1),
        ("relu", "block.1", 1),
        ("add", "", 0),
    ]
    assert run[0].shape == (1, 3, 32, 48)
    assert run[0].ints("kernel") == (3, 3)
    assert run[0].ints("padding") == (1, 1)
    assert run[1].inputs == (run[0].index,)
    assert graph.outputs == (run[-1].index,)
    assert run[-1].inputs == (run[-2].index, graph.inputs[0])
    assert all(max(op.inputs, default=-1) < op.index for op in graph.ops)
    assert pickle.loads(pickle.dumps(graph)) == graph


def test_size_that_fits_leaves_no_padding_in_the_graph() -> None:
    model = build_model("unet", num_classes=2, in_channels=3, levels=3, width=4)
    assert not {"pad", "slice"} & {op.kind for op in trace(model, (1, 3, 32, 48)).ops}
    assert {"pad", "slice"} <= {op.kind for op in trace(model, (1, 3, 33, 48)).ops}


def test_model_stays_as_it_was() -> None:
    model = build_model("unet", num_classes=2, in_channels=3, levels=3, width=4).train()
    model.encoder[0].eval()  # type: ignore[index]
    before = copy.deepcopy(model.state_dict())
    modes = [module.training for module in model.modules()]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        graph = trace(model, example_shape(3))
    assert [module.training for module in model.modules()] == modes
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert "dropout" not in {op.kind for op in graph.ops}
    assert all(op.settings["training"] is False for op in graph.ops if op.kind == "batch_norm")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_precisions(dtype: torch.dtype) -> None:
    model = build_model("unet", num_classes=2, in_channels=3, levels=3, width=4).to(dtype)
    assert derive_halo(trace(model, example_shape(3))).rows == Reach(22, 22)


def test_weights_need_no_memory() -> None:
    with torch.device("meta"):
        model = build_model("unet", num_classes=2, in_channels=3)
    assert derive_halo(trace(model, example_shape(3))).aligned.rows == Reach(96, 96)


class Branch(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x if x.sum() > 0 else -x


class Numpy(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * float(x.numpy().max())


class WrongBands(nn.Conv2d):
    def __init__(self) -> None:
        super().__init__(5, 5, 3)


@pytest.mark.parametrize("kind", [Branch, Numpy, WrongBands])
def test_what_cannot_be_exported_is_refused_in_one_line(
    kind: type[nn.Module], caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    model = kind().train()
    with caplog.at_level(logging.WARNING), pytest.raises(TraceError) as caught:
        trace(model, (1, 3, 16, 16))
    message = str(caught.value)
    assert "\n" not in message
    assert kind.__name__ in message
    assert "1x3x16x16" in message
    assert model.training
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("target", "settings", "kind"),
    [
        (
            "aten.convolution.default",
            {"stride": (1, 1), "padding": (1, 1), "dilation": (1, 1), "transposed": True},
            "conv_transposed",
        ),
        (
            "aten.max_pool2d_with_indices.default",
            {"kernel_size": (2, 2), "stride": (), "padding": (0, 0)},
            "max_pool",
        ),
        ("aten._unsafe_view.default", {}, "reshape"),
        ("aten._softmax.default", {"dim": 1}, "softmax"),
        ("aten.max.other", {"other": "tensor"}, "maximum"),
        ("aten.relu_.default", {}, "relu"),
        ("aten.reflection_pad2d.default", {"padding": (1, 1, 1, 1)}, "pad"),
        ("aten._upsample_bilinear2d_aa.vec", {}, "upsample_bilinear2d_aa"),
        ("mine.conv2d.default", {}, "mine.conv2d.default"),
    ],
)
def test_names_of_other_versions(target: str, settings: dict[str, object], kind: str) -> None:
    assert canonical(target, settings, [(1, 3, 8, 8), (3, 3, 3, 3)])[0] == kind  # type: ignore[arg-type]


@pytest.mark.parametrize("name", _KINDS)
def test_every_name_of_a_kind_is_read_as_that_kind(name: str) -> None:
    for spelling in (name, f"_{name}", f"{name}_"):
        assert canonical(f"aten.{spelling}.default", {}, [(1, 3, 8, 8)])[0] == _KINDS[name]


@pytest.mark.parametrize(
    ("target", "settings", "dims"),
    [
        ("aten.t.default", {}, (1, 0)),
        ("aten.transpose.int", {"dim0": 0, "dim1": -1}, (1, 0)),
        ("aten.permute.default", {"dims": (1, 0)}, (1, 0)),
    ],
)
def test_axes_that_are_reordered(target: str, settings: dict[str, object], dims: tuple[int, ...]) -> None:
    assert canonical(target, settings, [(3, 8)]) == ("permute", {"dims": dims})  # type: ignore[arg-type]


def test_a_forward_that_writes_into_its_weights_is_refused() -> None:
    class Decays(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3, 1, 1))

        def forward(self, x: Tensor) -> Tensor:
            return x * self.weight.data.mul_(0.5)

    with pytest.raises(TraceError, match="changes a weight in place"):
        trace(Decays(), (2, 3, 32, 32))


def test_a_recurrent_layer_from_pixel_to_pixel_is_refused_before_it_takes_hours() -> None:
    class Led(nn.Module):
        def __init__(self, *, batch_first: bool) -> None:
            super().__init__()
            self.cell = nn.LSTM(1, 1, batch_first=batch_first)

        def forward(self, x: Tensor) -> Tensor:
            along: Tensor = self.cell(x.permute(0, 2, 3, 1).reshape(-1, 3, 1))[0]
            return along.view(len(x), *x.shape[2:], 3).permute(0, 3, 1, 2)

    assert "lstm" in {op.kind for op in trace(Led(batch_first=True), (1, 3, 256, 256)).ops}
    with pytest.raises(TraceError, match="a recurrent layer takes 65,536 steps"):
        trace(Led(batch_first=False), (1, 3, 256, 256))


class _Slope(nn.Conv2d):
    def forward(self, x: Tensor) -> Tensor:
        slope: Tensor = torch.func.jvp(lambda y: super(_Slope, self).forward(y).tanh(), (x,), (x,))[1]
        return slope


def test_a_transform_that_cannot_be_exported_is_ended() -> None:
    assert torch._C._functorch.get_dynamic_layer_stack_depth() == 0
    with pytest.raises(TraceError, match="cannot be read"):
        trace(_Slope(3, 3, 3), (2, 3, 32, 48))
    assert torch._C._functorch.get_dynamic_layer_stack_depth() == 0
    assert trace(nn.Conv2d(3, 3, 3), (1, 3, 32, 48)).ops
