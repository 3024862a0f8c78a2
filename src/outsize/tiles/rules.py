"""The table of known operations: kind to rule; whatever is not in it may look anywhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from outsize.graph import Op, kinds
from outsize.tiles import local, pointwise, products, shapes
from outsize.tiles.constants import DRAWN, UNIFORM
from outsize.tiles.places import BATCH, COLS, COMPUTED, ROWS, WHOLE, Operand, OpNeeds, Place, Rule, plain

UNKNOWN = "unknown operation: it may look anywhere"


POINTWISE = kinds(
    """
    abs neg exp exp2 expm1 log log1p log2 log10 sqrt rsqrt reciprocal square pow sin cos tan asin acos atan atan2
    sinh cosh asinh acosh atanh erf erfc erfinv special_erfcx floor ceil round trunc frac sign sgn signbit positive
    relu relu6 leaky_relu elu selu celu gelu silu mish hardswish hardsigmoid hardtanh sigmoid logit log_sigmoid
    log_sigmoid_forward tanh softplus softshrink hardshrink threshold rrelu prelu_kernel lgamma digamma sinc i0
    special_log_ndtr special_entr special_xlog1py xlogy logaddexp logaddexp2 hypot copysign heaviside deg2rad rad2deg
    clamp clamp_min clamp_max clip nan_to_num add sub subtract rsub mul multiply div divide true_divide
    floor_divide remainder fmod maximum minimum fmax fmin eq ne lt le gt ge isnan isinf isfinite isposinf isneginf
    logical_and logical_or logical_not logical_xor bitwise_and bitwise_or bitwise_not bitwise_xor
    bitwise_left_shift bitwise_right_shift complex real imag angle polar conj conj_physical resolve_conj resolve_neg
    where masked_fill lerp addcmul addcdiv clone copy expand expand_as broadcast_to
    """
)
_ALONG = kinds("cat concat stack select unbind split slice_scatter select_scatter")
_LOOKS_ALONG = kinds(
    """
    softmax log_softmax cumsum cumprod cummax cummin logcumsumexp flip roll sort argsort topk kthvalue mode glu
    fft_fft fft_ifft fft_rfft fft_irfft fft_c2c fft_r2c fft_c2r fft_fft2 fft_ifft2 fft_rfft2 fft_irfft2 renorm
    """
)
_REDUCES = kinds(
    """
    mean sum nansum amax amin max min argmax argmin prod var std var_mean std_mean logsumexp any all norm
    linalg_vector_norm median nanmedian count_nonzero
    """
)
_WEIGHTED = kinds("prelu channel_shuffle native_channel_shuffle dropout feature_dropout alpha_dropout")
# Named even where rows and columns were lost before, because these are what a person looks for.
_EVERYWHERE = kinds(
    """
    attention matmul mm bmm addmm baddbmm group_norm instance_norm adaptive_avg_pool adaptive_max_pool
    fft_fft2 fft_rfft2 fft_ifft2 fft_irfft2 grid_sampler grid_sampler_2d
    """
)

RULES: dict[str, Rule] = {
    **dict.fromkeys(POINTWISE, pointwise.join),
    **dict.fromkeys(_ALONG, pointwise.join_along),
    **dict.fromkeys(_LOOKS_ALONG, pointwise.look_along),
    **dict.fromkeys(_REDUCES, pointwise.reduce),
    **dict.fromkeys(_WEIGHTED, pointwise.weighted),
    **dict.fromkeys(("batch_norm", "group_norm", "instance_norm"), pointwise.fixed_norm),
    **dict.fromkeys(("index", "index_select"), pointwise.pick),
    **dict.fromkeys(("gather", "scatter", "scatter_add"), pointwise.choose_along),
    **dict.fromkeys(("embedding", "one_hot"), pointwise.look_up),
    **dict.fromkeys(("layer_norm", "rms_norm"), pointwise.layer_norm),
    "bucketize": pointwise.sort_into,
    "getitem": pointwise.take_item,
    "reshape": shapes.reshape,
    "permute": shapes.permute,
    "repeat": shapes.repeat,
    "view_as_real": shapes.with_parts,
    "view_as_complex": shapes.of_parts,
    "linear": products.linear,
    **dict.fromkeys(("matmul", "mm", "bmm", "addmm", "baddbmm"), products.product),
    "cdist": products.distances,
    "attention": products.attention,
    **dict.fromkeys(("conv", "max_pool", "avg_pool"), local.slide),
    "conv_transposed": local.spread,
    "upsample": local.resize,
    "pixel_shuffle": local.pixel_shuffle,
    "pixel_unshuffle": local.pixel_unshuffle,
    "max_unpool2d": local.unpool,
    "unfold": local.unfold,
    "im2col": local.to_columns,
    "col2im": local.from_columns,
    "pad": local.pad,
    "slice": local.take_every,
}

# All kinds that are to be seen under their own names.
NAMED = frozenset(RULES) | _EVERYWHERE | UNIFORM

# rules that ask which of their operands are placed themselves
_ANY_PLACED = (
    pointwise.join,
    pointwise.join_along,
    pointwise.choose_along,
    pointwise.look_up,
    products.product,
    products.distances,
    products.attention,
    local.unpool,
)


def step(op: Op, operands: Sequence[Operand]) -> OpNeeds:
    """Apply the rule of an operation, at least one of whose operands depends on the picture."""
    done = _step(op, operands)
    reason = done.reason or next((each.constant.reason for each in operands if each.constant.reason), None)
    if op.settings.get("draws"):
        reason = DRAWN
    if op.kind not in ("max_unpool2d", "clone", "getitem"):
        if any(each.place is not None and each.place.positions is not None for each in operands):
            reason = reason or "uses positions in the whole picture"
        done = shapes.without_positions(done)
    elif op.kind == "max_unpool2d":
        done = shapes.without_positions(done)
    return replace(done, reason=reason)


def _step(op: Op, operands: Sequence[Operand]) -> OpNeeds:
    rule = RULES.get(op.kind)
    if not any(each.placed for each in operands):
        lost = next(each.place for each in operands if each.place is not None)
        return OpNeeds(_found_again(op, lost), reason=WHOLE if op.kind in _EVERYWHERE else None)
    if rule is None:
        place = next(each.known for each in operands if each.placed)
        kept = any(each.placed and each.shape == op.shape for each in operands)
        return OpNeeds(place if kept else place.lost(), reason=WHOLE if op.kind in _EVERYWHERE else UNKNOWN)
    if not operands[0].placed and rule not in _ANY_PLACED:
        place = next(each.known for each in operands if each.placed)
        return OpNeeds(place.lost(), reason=COMPUTED)
    return rule(op, operands)


def _found_again(op: Op, lost: Place) -> Place:
    """Take two neighbouring axes of the remembered size for rows and columns.

    The picture was mixed up before and is refused as exact for that. The guess only lets the needs of what
    comes before the mix-up be counted, for those who ask for an approximate answer.
    """
    for axis in range(len(op.shape) - 1):
        if op.shape[axis : axis + 2] == lost.sizes:
            rest = [plain(size) for size in op.shape[axis + 2 :]]
            front = [plain(size) for size in op.shape[:axis]]
            if axis and op.shape[0] == lost.batch > 1:
                front[0] = (BATCH,)
            return replace(lost, axes=(*front, (ROWS,), (COLS,), *rest))
    return lost
