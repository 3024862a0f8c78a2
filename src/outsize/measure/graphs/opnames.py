"""Many names, one kind: what torch calls an operation differs by version, dimension and overload."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from outsize.graph import Setting

Settings = dict[str, Setting]
Shapes = Sequence[tuple[int, ...]]

_SAME_KIND = {
    "reshape": ("view", "view_copy", "unsafe_view", "flatten", "unflatten", "squeeze", "unsqueeze"),
    "layer_norm": ("native_layer_norm",),
    "group_norm": ("native_group_norm",),
    "softmax": ("safe_softmax",),
    "clone": ("to_copy", "to", "alias", "detach", "contiguous", "lift_fresh_copy", "type_as"),
    "split": ("split_with_sizes", "chunk", "tensor_split", "unsafe_split", "unsafe_chunk"),
    "adaptive_avg_pool": ("adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d"),
    "adaptive_max_pool": ("adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d"),
    "attention": (
        "scaled_dot_product_attention",
        "multi_head_attention_forward",
        "native_multi_head_attention",
    ),
}
_KINDS = {name: kind for kind, names in _SAME_KIND.items() for name in names}
_REORDERS = ("permute", "t", "transpose")


def canonical(target: str, settings: Settings, shapes: Shapes) -> tuple[str, Settings]:
    """Return the kind and settings of "aten.conv2d.padding" and the like, given the inputs' shapes."""
    namespace, _, rest = target.partition(".")
    if namespace != "aten":
        return target, settings
    name = rest.split(".")[0].strip("_")
    if name in _REORDERS:
        return _permute(name, settings, shapes)
    for start, rewrite in _REWRITES:
        if name.startswith(start):
            return rewrite(name, settings, shapes)
    if name in ("max", "min") and "other" in settings:
        name += "imum"
    return _KINDS.get(name, name), settings


def kind_of(name: str) -> str:
    """Return the kind of an operation of torch by its name alone."""
    name = name.strip("_")
    if name in _REORDERS:
        return "permute"
    for start, kind in _STARTS.items():
        if name.startswith(start):
            return kind
    return _KINDS.get(name, name)


_STARTS = {
    "conv": "conv",
    "max_pool": "max_pool",
    "avg_pool": "avg_pool",
    "upsample": "upsample",
    "pad": "pad",
    "constant_pad": "pad",
    "reflection_pad": "pad",
    "replication_pad": "pad",
    "batch_norm": "batch_norm",
    "cudnn_batch_norm": "batch_norm",
    "miopen_batch_norm": "batch_norm",
}


def _conv(name: str, settings: Settings, shapes: Shapes) -> tuple[str, Settings]:
    transposed = bool(settings.get("transposed")) or name.startswith("conv_transpose")
    kernel = shapes[1][2:]
    dilation = _each(settings["dilation"], kernel)
    padding = settings["padding"]
    if padding == "same":
        # The odd pixel goes after: torch pads the end once more where the kernel is even.
        before = tuple(gap * (size - 1) // 2 for gap, size in zip(dilation, kernel, strict=True))
    else:
        before = _each(0 if padding == "valid" else padding, kernel)
    stride = _each(settings["stride"], kernel)
    kind = "conv_transposed" if transposed else "conv"
    more = _each(settings.get("output_padding", 0), kernel)
    return kind, {
        "kernel": kernel,
        "stride": stride,
        "padding": before,
        "dilation": dilation,
        "output_padding": more,
    }


def _pool(name: str, settings: Settings, _shapes: Shapes) -> tuple[str, Settings]:
    kernel = settings["kernel_size"]
    kernel = kernel if isinstance(kernel, tuple) else (kernel,)
    return name[: len("max_pool")], {
        "kernel": kernel,
        "stride": _each(settings["stride"] or kernel, kernel),
        "padding": _each(settings["padding"], kernel),
        "dilation": _each(settings.get("dilation", 1), kernel),
    }


def _upsample(name: str, settings: Settings, _shapes: Shapes) -> tuple[str, Settings]:
    mode = name.removeprefix("upsample_").rstrip("0123456789d")
    if mode.endswith("_aa"):
        return name, settings
    separate = tuple(settings[key] for key in ("scales_d", "scales_h", "scales_w") if key in settings)
    scales = settings.get("scale_factors") or (separate if any(separate) else None)
    return "upsample", {"mode": mode, "scales": scales, "align_corners": settings.get("align_corners", False)}


def _permute(name: str, settings: Settings, shapes: Shapes) -> tuple[str, Settings]:
    order = list(range(len(shapes[0])))
    if name == "permute":
        dims = settings["dims"]
        assert isinstance(dims, tuple)
        order = [order[dim] for dim in dims if isinstance(dim, int)]
    else:
        first, second = (0, -1) if name == "t" else (settings["dim0"], settings["dim1"])
        assert isinstance(first, int)
        assert isinstance(second, int)
        order[first], order[second] = order[second], order[first]
    return "permute", {"dims": tuple(order)}


def _pad(name: str, settings: Settings, _shapes: Shapes) -> tuple[str, Settings]:
    modes = {"constant_pad_nd": "constant", "pad": settings.get("mode", "constant")}
    mode = modes.get(name, "reflect" if name.startswith("reflection") else "replicate")
    amounts = settings.get("pad", settings.get("padding"))
    return "pad", {"mode": mode, "amounts": amounts, "value": settings.get("value") or 0}


def _batch_norm(name: str, settings: Settings, _shapes: Shapes) -> tuple[str, Settings]:
    fixed = name.endswith("no_training") or settings.get("training") is False
    return "batch_norm", {"training": not fixed}


def _each(value: Setting, like: tuple[Setting, ...]) -> tuple[int, ...]:
    values = value if isinstance(value, tuple) else (value,)
    numbers = tuple(int(each) for each in values)  # type: ignore[arg-type]
    return numbers * len(like) if len(numbers) == 1 else numbers


_REWRITES: tuple[tuple[str, Callable[[str, Settings, Shapes], tuple[str, Settings]]], ...] = (
    ("conv", _conv),
    ("max_pool", _pool),
    ("avg_pool", _pool),
    ("upsample_", _upsample),
    ("pad", _pad),
    ("constant_pad", _pad),
    ("reflection_pad", _pad),
    ("replication_pad", _pad),
    ("batch_norm", _batch_norm),
    ("native_batch_norm", _batch_norm),
    ("cudnn_batch_norm", _batch_norm),
    ("miopen_batch_norm", _batch_norm),
)
