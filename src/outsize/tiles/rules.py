"""The table of known operations: kind to rule; whatever is not in it may look anywhere."""

from __future__ import annotations

from collections.abc import Sequence

from outsize.graph import Op
from outsize.tiles import local, pointwise
from outsize.tiles.places import WHOLE, Operand, Place, Rule, Step

UNKNOWN = "unknown operation: it may look anywhere"


def _kinds(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Tensors of one value: a constant that is the same at every place.
UNIFORM = _kinds("full full_like zeros zeros_like ones ones_like new_zeros new_ones new_full scalar_tensor")

_JOINS = _kinds(
    """
    abs neg exp exp2 expm1 log log1p log2 log10 sqrt rsqrt reciprocal square pow sin cos tan asin acos atan atan2
    sinh cosh erf floor ceil round trunc frac sign relu relu6 leaky_relu elu selu celu gelu silu mish hardswish
    hardsigmoid hardtanh sigmoid log_sigmoid log_sigmoid_forward tanh softplus softshrink hardshrink threshold
    clamp clamp_min clamp_max clip nan_to_num add sub subtract rsub mul multiply div divide true_divide
    floor_divide remainder fmod maximum minimum fmax fmin eq ne lt le gt ge isnan isinf isfinite
    logical_and logical_or logical_not logical_xor bitwise_and bitwise_or bitwise_not bitwise_xor
    where masked_fill lerp addcmul addcdiv clone copy expand expand_as broadcast_to repeat
    """
)
_ALONG = _kinds("cat concat stack select unbind split slice_scatter")
_LOOKS_ALONG = _kinds("softmax log_softmax cumsum cumprod logcumsumexp flip roll")
_REDUCES = _kinds(
    """
    mean sum nansum amax amin max min argmax argmin prod var std var_mean std_mean logsumexp any all norm
    linalg_vector_norm median count_nonzero
    """
)
_WEIGHTED = _kinds("prelu channel_shuffle native_channel_shuffle dropout feature_dropout")
# Named even where rows and columns were lost before, because these are what a person looks for.
_EVERYWHERE = _kinds(
    """
    attention matmul mm bmm addmm baddbmm einsum group_norm instance_norm adaptive_avg_pool adaptive_max_pool
    fft_fft2 fft_rfft2 fft_ifft2 fft_irfft2 grid_sampler grid_sampler_2d
    """
)

RULES: dict[str, Rule] = {
    **dict.fromkeys(_JOINS, pointwise.join),
    **dict.fromkeys(_ALONG, pointwise.join_along),
    **dict.fromkeys(_LOOKS_ALONG, pointwise.look_along),
    **dict.fromkeys(_REDUCES, pointwise.reduce),
    **dict.fromkeys(_WEIGHTED, pointwise.weighted),
    **dict.fromkeys(("batch_norm", "group_norm", "instance_norm"), pointwise.fixed_norm),
    **dict.fromkeys(("index", "index_select"), pointwise.pick),
    "layer_norm": pointwise.layer_norm,
    "linear": pointwise.linear,
    "getitem": pointwise.take_item,
    "reshape": pointwise.reshape,
    "permute": pointwise.permute,
    **dict.fromkeys(("conv", "max_pool", "avg_pool"), local.slide),
    "conv_transposed": local.spread,
    "upsample": local.resize,
    "pixel_shuffle": local.pixel_shuffle,
    "pixel_unshuffle": local.pixel_unshuffle,
    "pad": local.pad,
    "slice": local.take_every,
}


def step(op: Op, operands: Sequence[Operand]) -> Step:
    """Apply the rule of an operation, at least one of whose operands depends on the picture."""
    rule = RULES.get(op.kind)
    if not any(each.placed for each in operands):
        lost = next(each.place for each in operands if each.place is not None)
        return Step(_found_again(op, lost), reason=WHOLE if op.kind in _EVERYWHERE else None)
    if rule is None:
        place = next(each.known for each in operands if each.placed)
        kept = len(op.shape) > max(place.known_axes) and place.scaled(1, 1, op.shape).sizes == place.sizes
        return Step(place if kept else place.lost(), reason=WHOLE if op.kind in _EVERYWHERE else UNKNOWN)
    if not operands[0].placed and rule not in (pointwise.join, pointwise.join_along):
        place = next(each.known for each in operands if each.placed)
        return Step(place.lost(), reason="takes weights or positions computed from the picture")
    return rule(op, operands)


def _found_again(op: Op, lost: Place) -> Place:
    """Take two neighbouring axes of the remembered size for rows and columns.

    The picture was mixed up before and is refused as exact for that. The guess only lets the needs of what
    comes before the mix-up be counted, for those who ask for an approximate answer.
    """
    for axis in range(len(op.shape) - 1):
        if op.shape[axis : axis + 2] == lost.sizes:
            return lost.at(axis, axis + 1)
    return lost
