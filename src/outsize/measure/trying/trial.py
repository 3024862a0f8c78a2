"""Tries a model on small pictures before tiles are believed: whole and in tiles, in batches and alone, many times."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from outsize.errors import first_line
from outsize.measure.state import as_it_was, counts_of, set_forward
from outsize.measure.tensors import own_device, own_dtype
from outsize.measure.trying.logged import CRASHES
from outsize.tiles.halo import Halo, Obstacle
from outsize.tiles.window import Window

# Of the largest logit. Double precision leaves no doubt; what cannot run in it is compared as far as its own goes.
_TOLERANCES = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 0.05, torch.float16: 0.01}
_SEED = 20240229
_REPEATS = 12  # runs of the smallest picture: what counts its calls differs after a few
_FEW = 3  # once that was seen in double precision: what draws in one type alone differs at once
_FLAT_PX = 1 << 14  # a picture of up to so many pixels is tried as a rectangle, a larger one as two strips

PLACE = "its answer in a tile is not the whole picture's: it depends on the size of the picture or the place in it"
BATCH = "its answer for a sample depends on the others of the batch, or on their number"
HISTORY = (
    "its answer for one picture differs from run to run: it draws random numbers or remembers earlier runs"
)

Run = Callable[[Tensor], Any]


@dataclass(frozen=True)
class _Try:
    """One comparison: pictures run together, and parts of them run apart, each with where it lies in them."""

    reason: str
    inputs: Tensor
    parts: Sequence[tuple[Tensor, Window, Window | None, int]]  # inputs, read, core (None: all), first sample


def try_tiling(
    model: Run, halo: Halo, num_inputs: int, *, device: str | torch.device | None = None
) -> tuple[Obstacle, ...]:
    """Return what speaks against cutting pictures for a model whose halo is derived: nothing, or one obstacle for each
    way in which it answered differently, by the name of the module that did so first.

    The model may be any callable from (sample, band, row, column) to maps of the same height and width; a module is
    copied to double precision where it runs in it, and left as it was. A leak from beyond the halo is mostly smaller
    than rounding: that is for `probe_halo` to find. This finds what an operation graph of one size does not show:
    dependence on size, place, the rest of the batch, or earlier runs.
    """

    def again(picture: Callable[..., Tensor]) -> Iterator[_Try]:
        return _repeats(halo.stride_px, picture, num=_FEW)

    return _tried(model, lambda picture: _cuts(halo, picture), again, num_inputs, device)


def try_history(model: Run, stride_px: int, num_inputs: int) -> tuple[Obstacle, ...]:
    """Return what speaks against a model that is not cut: that it answers differently from run to run."""

    def runs(num: int) -> _Tries:
        return lambda picture: _repeats(stride_px, picture, 48, num)

    return _tried(model, runs(_REPEATS), runs(_FEW), num_inputs, None)


_Tries = Callable[[Callable[..., Tensor]], Iterator[_Try]]  # of a maker of pictures


def _tried(
    model: Run, tries: _Tries, again: _Tries, num_inputs: int, device: str | torch.device | None
) -> tuple[Obstacle, ...]:
    with ExitStack() as stack:
        if isinstance(model, nn.Module):
            stack.enter_context(as_it_was(model))
            model.eval()
        stack.enter_context(torch.inference_mode())
        stack.enter_context(torch.backends.cudnn.flags(enabled=True, benchmark=False, allow_tf32=False))
        failures: list[str] = []
        own = own_device(model) if isinstance(model, nn.Module) else "cpu"
        where = torch.device(own if device is None else device)
        for judge, dtype in _judges(model):
            try:
                found = _try_all(judge, tries, num_inputs, dtype, where)
            except CRASHES as error:  # as of a model that does not take this precision
                failures.append(first_line(error))
            else:
                return found or _of_itself(model, judge, again, num_inputs, where)
        return (Obstacle("", "trial", f"it cannot be tried on a small picture ({failures[-1]})"),)


def _of_itself(
    model: Run, judge: Run, again: _Tries, num_inputs: int, device: torch.device
) -> tuple[Obstacle, ...]:
    """Run what a copy in double precision was judged by once more as it is: it may draw or count in that type alone."""
    if judge is model or not isinstance(model, nn.Module) or own_dtype(model) == torch.float64:
        return ()
    with suppress(*CRASHES):  # as on a device without that type, where it is not run in it either
        return _try_all(model, again, num_inputs, own_dtype(model), device)
    return ()


def _judges(model: Run) -> Iterator[tuple[Run, torch.dtype]]:
    """Yield the model in double precision where it can be copied, then as it is."""
    if isinstance(model, nn.Module):
        copied: nn.Module | None
        try:
            copied = copy.deepcopy(model).double()
        except CRASHES:  # a module may hold what cannot be copied
            copied = None
        if copied is not None:
            yield copied, torch.float64
    yield model, own_dtype(model) if isinstance(model, nn.Module) else torch.float32


def _try_all(
    run: Run, tries: _Tries, num_inputs: int, dtype: torch.dtype, device: torch.device
) -> tuple[Obstacle, ...]:
    generator = torch.Generator().manual_seed(_SEED)

    def picture(samples: int, height: int, width: int) -> Tensor:
        made = torch.randn(samples, num_inputs, height, width, dtype=torch.float64, generator=generator)
        return made.to(device=device, dtype=dtype)

    tolerance = _TOLERANCES.get(dtype, 0.05)
    found = []
    for each in tries(picture):
        if (module := _differing(run, each, tolerance)) is not None:
            found.append(Obstacle(module, "trial", each.reason))
            if each.reason == HISTORY:
                break  # whatever else differs may be due to that
    return tuple(dict.fromkeys(found))


def _cuts(halo: Halo, picture: Callable[..., Tensor]) -> Iterator[_Try]:
    yield from _repeats(halo.stride_px, picture)
    yield _samples(halo, picture)
    yield from _tiles(halo, picture)


def _repeats(
    stride_px: int, picture: Callable[..., Tensor], least_px: int = 16, num: int = _REPEATS
) -> Iterator[_Try]:
    side_px = _at_least(stride_px, least_px)
    inputs = picture(1, side_px, 2 * side_px)
    all_of = Window(0, 0, side_px, 2 * side_px)
    yield _Try(HISTORY, inputs, [(inputs, all_of, None, 0)] * num)


def _samples(halo: Halo, picture: Callable[..., Tensor]) -> _Try:
    side_px = _at_least(halo.stride_px, 16)
    inputs = picture(3, 2 * side_px, side_px)
    all_of = Window(0, 0, 2 * side_px, side_px)
    return _Try(
        BATCH, inputs, [(inputs[first:end], all_of, None, first) for first, end in ((0, 1), (1, 3), (2, 3))]
    )


def _tiles(halo: Halo, picture: Callable[..., Tensor]) -> Iterator[_Try]:
    """Compare windows at both ends and inside, as long as tiles are; along each axis where a rectangle is too large."""
    need, stride_px = halo.aligned, halo.stride_px
    core_px = _at_least(stride_px, 8)
    lengths = [
        (reach.before_px, core_px, reach.after_px, reach.before_px + core_px + reach.after_px + 3 * stride_px)
        for reach in (need.rows, need.cols)
    ]
    across_px = _at_least(stride_px, 24) if stride_px < 16 else 2 * stride_px
    whole = (0, across_px, 0, across_px)
    if lengths[0][-1] * lengths[1][-1] <= _FLAT_PX:
        yield _cut(picture, lengths[0], lengths[1], stride_px)
    else:
        # one end of each strip: the other axis has the other
        yield _cut(picture, lengths[0], whole, stride_px, left_out=2)
        yield _cut(picture, whole, lengths[1], stride_px, left_out=0)


_Side = tuple[int, int, int, int]  # before, core, after, length of the picture


def _cut(
    picture: Callable[..., Tensor], rows: _Side, cols: _Side, stride_px: int, left_out: int | None = None
) -> _Try:
    inputs = picture(1, rows[-1], cols[-1])
    parts = []
    starts = zip(_starts(rows, stride_px), _starts(cols, stride_px), strict=True)
    for row, col in (each for number, each in enumerate(starts) if number != left_out):
        read = Window(row[0], col[0], sum(rows[:3]), sum(cols[:3]))
        core = Window(row[1], col[1], rows[1], cols[1])
        parts.append((inputs[(..., *read.slices)], read, core, 0))
    return _Try(PLACE, inputs, parts)


def _starts(side: _Side, stride_px: int) -> list[tuple[int, int]]:
    """Return starts of window and core: at the near end, inside, at the far end."""
    before_px, core_px, after_px, length_px = side
    read_px = before_px + core_px + after_px
    if read_px == length_px:
        return [(0, 0)] * 3
    return [
        (0, 0),
        (stride_px, stride_px + before_px),
        (length_px - read_px, length_px - core_px),
    ]


def _at_least(stride_px: int, least_px: int) -> int:
    return -(-least_px // stride_px) * stride_px


def _differing(run: Run, each: _Try, tolerance: float) -> str | None:
    """Return the module that answers differently, "" for the model itself; None: none does."""
    if each.reason == HISTORY:
        return _changing(run, each, tolerance)
    whole = _answer(run, each.inputs)
    for part, *at in each.parts:
        if not _agree(whole, _answer(run, part), each.inputs, at, tolerance):
            with suppress(*CRASHES):
                expected, found = _seen_in(run, each.inputs), _seen_in(run, part)
                return _first_differing(expected, found, each.inputs, at, tolerance) or ""
            return ""
    return None


def _changing(run: Run, each: _Try, tolerance: float) -> str | None:
    """Run again and again, others in between; where that shows, once more from the same state with all modules watched.

    What a module counts is set forward too: some change their ways after a hundred runs.
    """
    model = run if isinstance(run, nn.Module) else None
    other = each.inputs.flip(-1) + 1
    with as_it_was(model) if model is not None else nullcontext():
        first = _answer(run, each.inputs)
        before = None if model is None else counts_of(model)
        for part, *at in each.parts:
            if not _agree(first, _answer(run, part), each.inputs, at, tolerance):
                break
            run(other.clone())
        else:
            if before is None:
                return None
            if gone := before.gone_on():
                return gone[0].module
            for name in set_forward(before):
                part, *at = each.parts[0]
                if not _agree(first, _answer(run, part), each.inputs, at, tolerance):
                    return name
            return None
    with suppress(*CRASHES):  # as where a module runs in a transform of torch
        expected = _seen_in(run, each.inputs)
        for part, *at in each.parts:
            name_of = _first_differing(expected, _seen_in(run, part), each.inputs, at, tolerance)
            if name_of is not None:
                return name_of
            run(other.clone())
    return ""


_Seen = list[tuple[str, list[Tensor]]]  # what each module answered, in the order in which they were done


def _seen_in(run: Run, inputs: Tensor) -> _Seen:
    if not isinstance(run, nn.Module):
        return [("", _answer(run, inputs))]
    with _watched(run) as seen:
        run(inputs.clone())
    return seen


def _answer(run: Run, inputs: Tensor) -> list[Tensor]:
    """Return copies of its maps: it may change the picture it is given, and write each answer over the last."""
    return [each.clone() for each in _maps(run(inputs.clone()))]


def _first_differing(
    expected: _Seen, found: _Seen, inputs: Tensor, at: Sequence[Any], tolerance: float
) -> str | None:
    for (name, maps), (other, parts) in zip(expected, found, strict=False):
        if name != other or not _agree(maps, parts, inputs, at, tolerance):
            return name
    return None if len(expected) == len(found) else ""


@contextmanager
def _watched(model: nn.Module) -> Iterator[_Seen]:
    """Give the list to which each module adds its name and copies of its maps when it is done."""
    seen: _Seen = []

    def watch(name: str) -> Callable[[nn.Module, Any, Any], None]:
        return lambda _module, _inputs, output: seen.append((name, [each.clone() for each in _maps(output)]))

    with ExitStack() as stack:
        for name, module in model.named_modules():
            stack.callback(module.register_forward_hook(watch(name)).remove)
        yield seen


def _agree(
    whole: Sequence[Tensor], parts: Sequence[Tensor], inputs: Tensor, at: Sequence[Any], tolerance: float
) -> bool:
    if len(whole) != len(parts):
        return False
    for large, small in zip(whole, parts, strict=True):
        expected, found = _common(large, small, inputs, *at)
        if expected is not None and not _close(expected, found, large, tolerance):
            return False
    return True


def _common(
    large: Tensor, small: Tensor, inputs: Tensor, read: Window, core: Window | None, first: int
) -> tuple[Tensor | None, Tensor]:
    """Return the parts of two maps that show the same pixels; None where that cannot be said."""
    if large.dim() < 3 or large.shape[0] != inputs.shape[0]:
        return None, small
    expected = large[first : first + small.shape[0]]
    if core is None:
        return (expected if expected.shape == small.shape else None), small
    (height, width), (rows, cols) = inputs.shape[-2:], large.shape[-2:]
    if not rows or not cols or height % rows or width % cols:
        return None, small
    down, across = height // rows, width // cols
    edges = (core.row, core.height, read.row, core.col, core.width, read.col)
    if any(each % (down if n < 3 else across) for n, each in enumerate(edges)):
        return None, small
    inner = core.within(read)
    expected = expected[
        ..., core.row // down : core.row_end // down, core.col // across : core.col_end // across
    ]
    found = small[
        ..., inner.row // down : inner.row_end // down, inner.col // across : inner.col_end // across
    ]
    return (expected if expected.shape == found.shape else None), found


def _close(expected: Tensor, found: Tensor, large: Tensor, tolerance: float) -> bool:
    if not expected.numel():
        return True
    if not expected.is_floating_point() and not expected.is_complex():
        return bool((expected == found).all())
    same = (expected == found) | (expected.isnan() & found.isnan())
    finite = large[large.isfinite()].abs()
    scale = float(finite.max()) if finite.numel() else 0.0
    return bool((same | ((expected - found).abs() <= tolerance * scale)).all())


def _maps(output: object) -> list[Tensor]:
    if isinstance(output, Tensor):
        return [output]
    if isinstance(output, Mapping | list | tuple):
        values = output.values() if isinstance(output, Mapping) else output
        return [each for value in values for each in _maps(value)]
    return []
