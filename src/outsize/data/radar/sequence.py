"""Frames in the order of their times: checked, cut into windows, and shared out by time.

    inputs (num_in)            targets (num_out)
    |o o o o o o o o o o|      |o o o o o o o o o o|        o: a frame, every step
                       ^ issued: a forecast starts from its last input

Where a frame is missing, windows that need it are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from outsize.data.radar.frames import Frame
from outsize.data.split import SPLITS
from outsize.errors import DataError, JobError, explain
from outsize.job import FramesSection, SplitSection
from outsize.units import clock, seconds_of

_SLACK = 0.1  # of a step, by which a frame may be early or late


@dataclass(frozen=True)
class FrameWindow:
    """Frames that are seen, and those that follow them."""

    inputs: tuple[Frame, ...]
    targets: tuple[Frame, ...]

    @property
    def issued_s(self) -> int:
        """The time of the last frame that is seen."""
        return self.inputs[-1].time_s

    @property
    def is_backwards(self) -> bool:
        """Whether it is played backwards."""
        return self.inputs[0].time_s > self.inputs[-1].time_s

    def backwards(self) -> FrameWindow:
        """Return the same frames, the last one first: what grows decays."""
        turned = self.every[::-1]
        return FrameWindow(turned[: len(self.inputs)], turned[len(self.inputs) :])

    @property
    def every(self) -> tuple[Frame, ...]:
        """All frames."""
        return (*self.inputs, *self.targets)


def cut(frames: Sequence[Frame], section: FramesSection) -> tuple[list[FrameWindow], int]:
    """Cut frames in the order of time into all windows; return also how many starts were left out for gaps."""
    num = section.num_in + section.num_out
    first_s = frames[0].time_s
    by_step = {}
    for frame in frames:
        steps = (frame.time_s - first_s) / section.step_s
        if abs(steps - round(steps)) <= _SLACK:
            by_step[round(steps)] = frame
    windows, num_gaps = [], 0
    for start in range(max(by_step) - num + 2):
        held = [by_step.get(step) for step in range(start, start + num)]
        found = [frame for frame in held if frame is not None]
        if len(found) == num:
            windows.append(FrameWindow(tuple(found[: section.num_in]), tuple(found[section.num_in :])))
        else:
            num_gaps += 1
    return windows, num_gaps


def newest(frames: Sequence[Frame], section: FramesSection) -> tuple[Frame, ...]:
    """Return the newest frames, as many as a model sees; refuse a gap among them."""
    held = frames[-section.num_in :]
    if len(held) < section.num_in:
        need, remedy = (
            f"{section.num_in} frames, one every {section.step_minutes:g} min",
            "give earlier ones, too",
        )
        raise DataError(explain("there are too few frames to forecast from", f"{len(held)}", need, remedy))
    for before, frame in pairwise(held):
        apart_s = frame.time_s - before.time_s
        if abs(apart_s - section.step_s) > _SLACK * section.step_s:
            need = f"{section.step_minutes:g} min between frames"
            found = f"{apart_s / 60:g} min between {before.name} and {frame.name}"
            remedy = "give the missing frame, or frames before the gap"
            raise DataError(explain("there is a gap among the newest frames", found, need, remedy))
    return tuple(held)


def share(windows: Sequence[FrameWindow], split: SplitSection) -> dict[str, list[FrameWindow]]:
    """Share windows out by time: by the intervals that are named, or the last ones for the test."""
    gap_s = 60 * split.gap_minutes
    if split.train_times or split.val_times or split.test_times:
        shared = _by_intervals(windows, split)
    else:
        shared = _by_shares(windows, split)
    for other in ("val", "test"):
        _refuse_seen(shared["train"], shared[other], other, gap_s)
    if not shared["train"]:
        held_back = ", ".join(f"{len(shared[name])} for {name}" for name in ("val", "test"))
        by_name = "widen data.split.train_times, or give more frames"
        remedy = by_name if split.train_times else "lower data.split.val or test, or give more frames"
        need = "one at least, with all its frames in the time for training"
        raise JobError(
            explain(
                "the split leaves nothing to train on", f"{len(windows)} windows, {held_back}", need, remedy
            )
        )
    return shared


def _by_intervals(windows: Sequence[FrameWindow], split: SplitSection) -> dict[str, list[FrameWindow]]:
    """Return windows by named times: for training with all of their frames, else by when a forecast starts."""
    shared: dict[str, list[FrameWindow]] = {}
    for name in SPLITS:
        intervals = [_interval(text, name) for text in getattr(split, f"{name}_times")]
        shared[name] = [
            window
            for window in windows
            if any(
                all(start <= frame.time_s <= end for frame in window.every)
                if name == "train"
                else start <= window.issued_s <= end
                for start, end in intervals
            )
        ]
    return shared


def _by_shares(windows: Sequence[FrameWindow], split: SplitSection) -> dict[str, list[FrameWindow]]:
    """Return the last windows for the test, those before for validation.

    What one split forecasts is in none before it; what it only sees may be: a radar's day has few windows to lose.
    """
    rest: list[FrameWindow] = list(windows)
    shared: dict[str, list[FrameWindow]] = {name: [] for name in SPLITS}
    for name, part in (("test", split.test), ("val", split.val)):
        num = max(1, round(part * len(windows))) if part else 0
        if num and rest:
            shared[name] = rest[-num:]
            first_s = shared[name][0].targets[0].time_s - 60 * split.gap_minutes
            rest = [window for window in rest[:-num] if window.targets[-1].time_s < first_s]
    return {**shared, "train": rest}


def _refuse_seen(train: Sequence[FrameWindow], held: Sequence[FrameWindow], name: str, gap_s: float) -> None:
    """Refuse a split in which a frame to be forecast was learnt from, or is nearer to one than the gap."""
    learnt = sorted({frame.time_s for window in train for frame in window.every})
    for window in held:
        for frame in window.targets:
            near = next((each for each in learnt if abs(each - frame.time_s) <= gap_s), None)
            if near is not None:
                found = f"{clock(frame.time_s)} is forecast in {name}, {clock(near)} learnt from"
                need = f"more than {gap_s / 60:g} min between them"
                remedy = f"correct data.split.{name}_times, or data.split.gap_minutes"
                raise DataError(explain("the split leaks", found, need, remedy))


def _interval(text: str, name: str) -> tuple[int, int]:
    start, slash, end = text.partition("/")
    try:
        if not slash:
            raise ValueError("one time alone")
        return seconds_of(start), seconds_of(end)
    except ValueError as error:
        need, remedy = "FROM/TO, as 2020-10-31T08:00/2020-10-31T10:50", f"correct data.split.{name}_times"
        raise JobError(explain(f"data.split.{name}_times is no time", repr(text), need, remedy)) from error
