"""Operations that look at neighbours: convolution, pooling, resizing, padding, slicing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction

from outsize.graph import Op, Setting
from outsize.tiles import spans
from outsize.tiles.places import WHOLE, Operand, Step
from outsize.tiles.pointwise import weighted
from outsize.tiles.spans import Span


def slide(op: Op, operands: Sequence[Operand]) -> Step:
    """Convolution and pooling."""
    return _windowed(op, operands, spans.sliding, shrinks=True)


def spread(op: Op, operands: Sequence[Operand]) -> Step:
    """Transposed convolution that enlarges by exactly its stride."""
    step = _windowed(op, operands, spans.spreading, shrinks=False)
    num_dims = len(op.ints("kernel"))
    sizes = zip(op.shape[-num_dims:], operands[0].shape[-num_dims:], op.ints("stride"), strict=True)
    uneven = any(after != before * stride for after, before, stride in sizes)
    # Where more is added behind than cut off in front, the first pixels of a tile come from no pixel at all.
    padded = any(
        more > less for more, less in zip(op.ints("output_padding"), op.ints("padding"), strict=True)
    )
    if uneven or padded:
        return replace(step, reason="enlarges by something else than its stride")
    return step


def _windowed(
    op: Op, operands: Sequence[Operand], make: Callable[[int, int, int, int], Span], *, shrinks: bool
) -> Step:
    step = weighted(op, operands)
    settings = list(
        zip(op.ints("kernel"), op.ints("stride"), op.ints("padding"), op.ints("dilation"), strict=True)
    )
    first = len(op.shape) - len(settings)
    if min(step.place.known_axes) < first:
        return replace(step, reason=WHOLE)
    rows, cols = (settings[axis - first] for axis in step.place.known_axes)
    factors = [Fraction(stride) if shrinks else Fraction(1, stride) for _, stride, _, _ in (rows, cols)]
    place = step.place.scaled(factors[0], factors[1], op.shape)
    return Step(place, (make(*rows), make(*cols)), step.reason)


def resize(op: Op, operands: Sequence[Operand]) -> Step:
    """Nearest, bilinear and bicubic resizing, by powers of two and between pixel centres."""
    place = operands[0].known
    rows, cols = (Fraction(operands[0].shape[axis], op.shape[axis]) for axis in place.known_axes)
    mode, reason = op.settings["mode"], None
    if op.settings["align_corners"]:
        reason = "align_corners=True places its samples by the size of the picture"
    elif not (_is_power_of_two(rows) and _is_power_of_two(cols)):
        # Otherwise torch rounds sample positions, by an amount that grows with the distance from the corner.
        reason = "resizes by something else than a power of two"
    elif not _agree(op.settings["scales"], (rows, cols)):
        reason = "resizes by a factor other than output size / input size"
    scaled = place.scaled(rows, cols, op.shape)
    if mode in ("nearest", "nearest_exact"):
        offset = Fraction(1, 2) if mode == "nearest_exact" else Fraction(0)
        return Step(scaled, (spans.nearest(rows, offset), spans.nearest(cols, offset)), reason)
    if mode in ("bilinear", "bicubic"):
        taps = 2 if mode == "bilinear" else 4
        return Step(scaled, (spans.interpolating(rows, taps), spans.interpolating(cols, taps)), reason)
    return Step(scaled, reason=f"resizes by {mode}, whose reach is not known")


def _is_power_of_two(ratio: Fraction) -> bool:
    top, bottom = ratio.numerator, ratio.denominator
    return top & (top - 1) == 0 and bottom & (bottom - 1) == 0


def _agree(scales: Setting, ratios: tuple[Fraction, Fraction]) -> bool:
    if scales is None:
        return True
    assert isinstance(scales, tuple)
    return all(isinstance(s, float) and s * r == 1 for s, r in zip(scales[-2:], ratios, strict=True))


def pixel_shuffle(op: Op, operands: Sequence[Operand]) -> Step:
    """Channels to pixels."""
    ratio = Fraction(1, op.ints("upscale_factor")[0])
    need = spans.nearest(ratio)
    return Step(operands[0].known.scaled(ratio, ratio, op.shape), (need, need))


def pixel_unshuffle(op: Op, operands: Sequence[Operand]) -> Step:
    """Pixels to channels."""
    factor = op.ints("downscale_factor")[0]
    need = spans.sliding(factor, factor, 0, 1)
    return Step(operands[0].known.scaled(factor, factor, op.shape), (need, need))


def pad(op: Op, operands: Sequence[Operand]) -> Step:
    """Constant padding shifts the picture; any other repeats pixels at the border of each tile."""
    place = operands[0].known
    amounts = op.ints("amounts")  # (before, after) of the last axis, then of the one before it, ...
    sides = []
    for axis in place.known_axes:
        start = 2 * (len(op.shape) - 1 - axis)
        sides.append((*amounts[start : start + 2], 0, 0)[:2])
    reason = None
    if min(min(side) for side in sides) < 0:
        reason = "crops the picture by a fixed number of pixels"
    elif op.settings["mode"] != "constant" and any(any(side) for side in sides):
        reason = f"pads by {op.settings['mode']}, which repeats pixels at the border of each tile"
    needs = (spans.shifted(sides[0][0]), spans.shifted(sides[1][0]))
    return Step(place.scaled(1, 1, op.shape), needs, reason)


def take_every(op: Op, operands: Sequence[Operand]) -> Step:
    """Slicing: harmless along other axes; along rows and columns only every n-th pixel of the whole picture."""
    source, place = operands[0], operands[0].known
    axis = op.ints("dim")[0] % len(source.shape)
    size = source.shape[axis]
    start, end, step = (
        (op.ints(key) or (least,))[0] for key, least in (("start", 0), ("end", size), ("step", 1))
    )
    if axis not in place.known_axes or (start == 0 and end >= size and step == 1):
        return Step(place)
    reason = None
    if not 0 <= start < step or end < size:
        reason = "crops the picture (if to undo a padding, trace with a size that needs none)"
    needs: list[Span] = [spans.same, spans.same]
    factors = [1, 1]
    which = place.known_axes.index(axis)
    needs[which], factors[which] = spans.sliding(1, step, -start, 1), step
    return Step(place.scaled(factors[0], factors[1], op.shape), (needs[0], needs[1]), reason)
