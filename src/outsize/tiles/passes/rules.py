"""What each operation of a whole picture's graph asks for when only a part of its output is computed.

The graph is traced at the size of the picture itself, so that rows and columns of a map are those of the whole, and a
part is an interval of them. An operation that has no rule here is not refused: it waits for the whole of its inputs.
"""

from __future__ import annotations

from collections.abc import Sequence

from outsize.graph import Op, kinds
from outsize.tiles.passes.around import pad, resize, shuffle, slide, spread, take
from outsize.tiles.passes.inside import (
    along,
    batch_norm,
    group_norm,
    join,
    join_along,
    last_axis,
    permute,
    pick,
    pool_to_bins,
    reduce,
    reshape,
    take_item,
    weighted,
)
from outsize.tiles.passes.parts import WAITS, OpPart, PassOperand, Role, Rule


def part_of(op: Op, operands: Sequence[PassOperand]) -> OpPart:
    """Return how an operation runs."""
    if all(each.map is None for each in operands):
        enlarges = op.kind == "upsample" and len(op.shape) == 4
        return resize(op, operands) if enlarges else OpPart(Role.PLAIN)
    rule = _RULES.get(op.kind)
    return WAITS if rule is None else rule(op, operands)


_POINTWISE = kinds(
    """
    abs neg exp exp2 expm1 log log1p log2 log10 sqrt rsqrt reciprocal square pow sin cos tan asin acos atan atan2
    sinh cosh erf floor ceil round trunc frac sign relu relu6 leaky_relu elu selu celu gelu silu mish hardswish
    hardsigmoid hardtanh sigmoid log_sigmoid tanh softplus softshrink hardshrink threshold
    clamp clamp_min clamp_max clip nan_to_num add sub subtract rsub mul multiply div divide true_divide
    floor_divide remainder fmod maximum minimum fmax fmin eq ne lt le gt ge isnan isinf isfinite
    logical_and logical_or logical_not logical_xor bitwise_and bitwise_or bitwise_not bitwise_xor
    where masked_fill lerp addcmul addcdiv clone copy full_like zeros_like ones_like
    """
)
_REDUCES = kinds(
    "mean sum nansum amax amin max min argmax argmin prod var std logsumexp any all linalg_vector_norm"
)

_RULES: dict[str, Rule] = {
    **dict.fromkeys(_POINTWISE, join),
    **dict.fromkeys(("expand", "broadcast_to", "expand_as"), join),
    **dict.fromkeys(("prelu", "dropout", "channel_shuffle", "native_channel_shuffle"), weighted),
    **dict.fromkeys(("linear", "matmul", "layer_norm"), last_axis),
    **dict.fromkeys(("softmax", "log_softmax", "cumsum", "cumprod", "logcumsumexp", "flip", "roll"), along),
    **dict.fromkeys(_REDUCES, reduce),
    **dict.fromkeys(("adaptive_avg_pool", "adaptive_max_pool"), pool_to_bins),
    **dict.fromkeys(("conv", "max_pool", "avg_pool"), slide),
    **dict.fromkeys(("pixel_shuffle", "pixel_unshuffle"), shuffle),
    **dict.fromkeys(("cat", "concat", "stack", "select", "unbind", "split"), join_along),
    **dict.fromkeys(("index", "index_select"), pick),
    **dict.fromkeys(("group_norm", "instance_norm"), group_norm),
    "batch_norm": batch_norm,
    "conv_transposed": spread,
    "upsample": resize,
    "pad": pad,
    "slice": take,
    "getitem": take_item,
    "reshape": reshape,
    "permute": permute,
}
