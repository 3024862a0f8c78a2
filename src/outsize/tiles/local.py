"""Operations that look at neighbours: convolution, pooling, resizing, padding, slicing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction

from outsize.graph import Op, Setting
from outsize.tiles import spans
from outsize.tiles.places import (
    BATCH,
    COLS,
    COMPUTED,
    ROWS,
    SAMPLES,
    WHOLE,
    Axis,
    Operand,
    OpNeeds,
    Place,
    plain,
    tracked,
)
from outsize.tiles.spans import Span

_SIDES: tuple[Axis, Axis] = ((ROWS,), (COLS,))
_Make = Callable[..., Span]


def slide(op: Op, operands: Sequence[Operand]) -> OpNeeds:
    """Convolution and pooling."""
    return _windowed(op, operands, spans.sliding, shrinks=True)


def spread(op: Op, operands: Sequence[Operand]) -> OpNeeds:
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
        return replace(step, reason=step.reason or "enlarges by something else than its stride")
    return step


def _windowed(op: Op, operands: Sequence[Operand], make: _Make, *, shrinks: bool) -> OpNeeds:
    """Move windows along the last axes; each must be rows, or columns, or nothing of the picture."""
    place = operands[0].known
    names = ("kernel", "stride", "padding", "dilation")
    settings = list(zip(*(op.ints(name) for name in names), strict=True))
    first = len(op.shape) - len(settings)
    reason = COMPUTED if any(each.place is not None for each in operands[1:]) else None
    if op.kind.startswith("conv"):
        reason = reason or place.over([first - 1])
    needs: list[Span] = [spans.same, spans.same]
    for axis, each in enumerate(settings, first):
        kernel, stride, padding, _ = each
        if place.known[axis] in _SIDES:
            which = _SIDES.index(place.known[axis])
            factor = Fraction(stride) if shrinks else Fraction(1, stride)
            place = place.resized(which, factor, op.shape[axis])
            needs[which] = make(*each)
        elif (kernel, stride, padding) != (1, 1, 0):
            reason = reason or place.over([axis])
    return OpNeeds(place.fitted(op.shape), (needs[0], needs[1]), reason)


def unfold(op: Op, operands: Sequence[Operand]) -> OpNeeds:
    """Windows along one axis, with an axis of their own for what is in them."""
    place = operands[0].known
    axis, size, stride = (op.ints(name)[0] for name in ("dimension", "size", "step"))
    axis %= len(place.known)
    needs: list[Span] = [spans.same, spans.same]
    reason = None
    if place.known[axis] in _SIDES:
        which = _SIDES.index(place.known[axis])
        place, needs[which] = place.resized(which, stride, op.shape[axis]), spans.sliding(size, stride, 0, 1)
    else:
        reason = place.over([axis])
    return OpNeeds(place.on([*place.known, plain(size)]).fitted(op.shape), (needs[0], needs[1]), reason)


def to_columns(op: Op, operands: Sequence[Operand]) -> OpNeeds:
    """Windows of the picture with their pixels as channels, rows and columns on one axis (`F.unfold`)."""
    place = operands[0].known
    names = ("kernel_size", "stride", "padding", "dilation")
    settings = list(zip(*(op.ints(name) for name in names), strict=True))
    if place.known[-2:] != _SIDES or (reason := place.over([-3])):
        return OpNeeds(place.lost(), reason=reason or WHOLE)
    needs = []
    for which, (kernel, stride, padding, dilation) in enumerate(settings):
        size = (place.sizes[which] + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1
        place = place.resized(which, stride, size)
        needs.append(spans.sliding(kernel, stride, padding, dilation))
    axes = [*place.known[:-3], plain(op.shape[-2]), (ROWS, COLS)]
    return OpNeeds(place.on(axes), (needs[0], needs[1]))


def from_columns(op: Op, operands: Sequence[Operand]) -> OpNeeds:
    """Sum windows back into a picture (`F.fold`)."""
    place = operands[0].known
    names = ("kernel_size", "stride", "padding", "dilation")
    settings = list(zip(*(op.ints(name) for name in names), strict=True))
    if place.known[-1] != (ROWS, COLS) or (reason := place.over([-2])):
        return OpNeeds(place.lost(), reason=reason or WHOLE)
    needs = []
    for which, each in enumerate(settings):
        place = place.resized(which, Fraction(1, each[1]), op.shape[which - 2])
        needs.append(spans.spreading(*each))
    axes = [*place.known[:-2], plain(op.shape[-3]), *_SIDES]
    return OpNeeds(place.on(axes), (needs[0], needs[1]))


def resize(op: Op, operands: Sequence[Operand]) -> OpNeeds:
    """Nearest, bilinear and bicubic resizing between pixel centres, by a ratio that is the same for every size."""
    source, place = operands[0], operands[0].known
    mode = str(op.settings["mode"])
    ratios = [Fraction(source.shape[axis], op.shape[axis]) for axis in range(2, len(op.shape))]
    reason = None
    if op.settings["align_corners"]:
        reason = "align_corners=True places its samples by the size of the picture"
    elif mode in ("nearest", "nearest_exact") and not all(map(spans.rounds_well, ratios)):
        # torch rounds the place of a sample; by some ratios it falls on the pixel before, far from the corner.
        reason = "resizes by a ratio for which torch picks pixels by their distance from the corner"
    elif not _agree(op.settings["scales"], ratios):
        reason = "resizes by a factor other than output size / input size"
    makes: dict[str, _Make] = {
        "nearest": spans.nearest,
        "nearest_exact": lambda ratio: spans.nearest(ratio, Fraction(1, 2)),
        "linear": lambda ratio: spans.interpolating(ratio, 2),
        "bilinear": lambda ratio: spans.interpolating(ratio, 2),
        "bicubic": lambda ratio: spans.interpolating(ratio, 4),
    }
    if mode not in makes:
        reason = f"resizes by {mode}, whose reach is not known"
    needs: list[Span] = [spans.same, spans.same]
    for axis, ratio in enumerate(ratios, 2):
        if place.known[axis] in _SIDES:
            which = _SIDES.index(place.known[axis])
            place = place.resized(which, ratio, op.shape[axis])
            needs[which] = makes.get(mode, spans.nearest)(ratio)
        elif ratio != 1:
            reason = reason or place.over([axis])
    return OpNeeds(place.fitted(op.shape), (needs[0], needs[1]), reason)


def _agree(scales: Setting, ratios: Sequence[Fraction]) -> bool:
    if scales is None:
        return True
    assert isinstance(scales, tuple)
    given = scales[-len(ratios) :]
    return all(
        isinstance(s, float) and Fraction(s).limit_denominator(1000) * r == 1
        for s, r in zip(given, ratios, strict=True)
    )


def pixel_shuffle(op: Op, operands: Sequence[Operand]) -> OpNeeds:
    """Channels to pixels."""
    ratio = Fraction(1, op.ints("upscale_factor")[0])
    return _shuffled(op, operands[0].known, ratio, spans.nearest(ratio))


def pixel_unshuffle(op: Op, operands: Sequence[Operand]) -> OpNeeds:
    """Pixels to channels."""
    factor = op.ints("downscale_factor")[0]
    return _shuffled(op, operands[0].known, Fraction(factor), spans.sliding(factor, factor, 0, 1))


def _shuffled(op: Op, place: Place, ratio: Fraction, need: Span) -> OpNeeds:
    if place.known[-2:] != _SIDES or (reason := place.over([-3])):
        return OpNeeds(place.lost(), reason=reason or WHOLE)
    for which in (0, 1):
        place = place.resized(which, ratio, op.shape[which - 2])
    return OpNeeds(place.fitted(op.shape), (need, need))


def unpool(op: Op, operands: Sequence[Operand]) -> OpNeeds:
    """Put the largest values back where a pooling with windows side by side found them."""
    source, found = operands[0], operands[1]
    if not source.placed or not found.placed:
        return OpNeeds(next(each.known for each in operands if each.place is not None), reason=WHOLE)
    place, kernel = source.known, found.known.positions or ()
    alike = replace(found.known, positions=None) == replace(place, positions=None)
    sizes = [size * times for size, times in zip(source.shape[-2:], kernel or (0, 0), strict=True)]
    needs: list[Span] = [spans.same, spans.same]
    for which, times in enumerate(kernel if len(kernel) == 2 else (1, 1)):
        place = place.resized(which, Fraction(1, times), op.shape[which - 2])
        needs[which] = spans.nearest(Fraction(1, times))
    sides = place.known[-2:] == _SIDES and list(op.shape[-2:]) == sizes
    reason = None if alike and sides else "puts values at positions of the whole picture"
    return OpNeeds(place.fitted(op.shape), (needs[0], needs[1]), reason)


def pad(op: Op, operands: Sequence[Operand]) -> OpNeeds:
    """Padding shifts the picture. Mirrored pixels lie inside every window that reaches as far as is asked beyond it."""
    place = operands[0].known
    amounts = op.ints("amounts")  # (before, after) of the last axis, then of the one before it, ...
    needs: list[Span] = [spans.same, spans.same]
    reason, crops = None, False
    if op.settings["mode"] not in ("constant", "reflect", "replicate"):
        reason = f"pads by {op.settings['mode']}, which looks at the far side of the picture"
    for last, (before, behind) in enumerate(zip(amounts[::2], amounts[1::2], strict=True), 1):
        axis = len(op.shape) - last
        if place.known[axis] in _SIDES:
            which = _SIDES.index(place.known[axis])
            needs[which] = spans.shifted(before)
            place = place.resized(which, 1, op.shape[axis])
            crops = crops or before < 0 or behind < 0
        elif before or behind:
            reason = reason or place.over([axis])
    return OpNeeds(place.fitted(op.shape), (needs[0], needs[1]), reason, crops)


def take_every(op: Op, operands: Sequence[Operand]) -> OpNeeds:
    """Slicing: along rows and columns every n-th pixel, and so many fewer at either end."""
    source, place = operands[0], operands[0].known
    axis = op.ints("dim")[0] % len(source.shape)
    size = source.shape[axis]
    start, missing, step = ends(op, size)
    if not tracked(place.known[axis]):
        return OpNeeds(place.fitted(op.shape))
    if (start, missing, step) == (0, 0, 1):
        return OpNeeds(place)
    if place.known[axis] not in _SIDES:
        only_samples = set(place.known[axis]) == {BATCH}
        return OpNeeds(place if only_samples else place.lost(), reason=SAMPLES if only_samples else WHOLE)
    needs: list[Span] = [spans.same, spans.same]
    which = _SIDES.index(place.known[axis])
    needs[which] = spans.sliding(1, step, -start, 1)
    crops = start >= step or missing > 0
    return OpNeeds(place.resized(which, step, op.shape[axis]), (needs[0], needs[1]), None, crops)


def ends(op: Op, size: int) -> tuple[int, int, int]:
    """Return of a slice how many positions are left out in front and behind, and of how many one is taken."""
    start, end, step = (
        (op.ints(key) or (usual,))[0] for key, usual in (("start", 0), ("end", size), ("step", 1))
    )
    start, end = (max(0, min(size, each + size if each < 0 else each)) for each in (start, end))
    return start, size - end, step
