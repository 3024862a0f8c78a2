"""Says how a long verb is getting on: a live bar in a terminal, JSON lines elsewhere."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

from outsize import stopping
from outsize.progress.activities import Activities

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

Style = Literal["bar", "json", "quiet"]

_MIN_INTERVAL_S = 1.0  # between two JSON lines of one bar


class Bar:
    """One count on its way to a total; `advance` may be called from any thread."""

    def __init__(self, reporter: Reporter, title: str, total: int, unit: str) -> None:
        self.title, self.total, self.unit = title, total, unit
        self.done = 0
        self._reporter = reporter
        self._start_s = time.monotonic()
        self._last_s = 0.0

    def advance(self, amount: int = 1, **facts: object) -> None:
        """Count `amount` more as done; `facts` (a loss, a file name) are shown beside the bar."""
        self.done += amount
        stopping.check()
        now_s = time.monotonic()
        if self.done >= self.total or now_s - self._last_s >= _MIN_INTERVAL_S:
            self._last_s = now_s
            self._reporter._show(self, now_s - self._start_s, facts)


class Reporter:
    """Where a command's progress goes; lives as long as the command."""

    def __init__(self, style: Style = "quiet") -> None:
        self.style = style
        self._live: tuple[Progress, dict[int, Any]] | None = None
        self._activities = Activities()

    @contextmanager
    def doing(self, activity: str, *, parallel: int = 1) -> Iterator[None]:
        """Count the time of the block as that of an activity, which so many ranks, threads or connections share."""
        with self._activities.doing(activity, parallel):
            yield

    @contextmanager
    def noting(self) -> Iterator[Activities]:
        """Note what is done in the block, apart from what is done around it."""
        before, self._activities = self._activities, Activities()
        try:
            yield self._activities
        finally:
            self._activities = before

    @contextmanager
    def bar(
        self, title: str, total: int, unit: str, *, activity: str | None = None, parallel: int = 1
    ) -> Iterator[Bar]:
        """Show a bar with rate and time left while the block runs, which is an activity (default: of its title)."""
        bar = Bar(self, title, total, unit)
        with self.doing(activity or title, parallel=parallel):
            if self.style == "bar":
                with self._shown(bar):
                    yield bar
            else:
                yield bar

    @contextmanager
    def _shown(self, bar: Bar) -> Iterator[None]:
        with _make_live(self._console()) as live:
            task = live.add_task(bar.title, total=bar.total, unit=bar.unit, facts="")
            self._live = (live, {id(bar): task})
            try:
                yield
            finally:
                self._live = None

    def say(self, event: str, text: str, **facts: object) -> None:
        """Report one finished thing: a line of text to a person, a JSON line to a program."""
        stopping.check()
        if self.style == "bar":
            (self._live[0].console if self._live else self._console()).print(
                text, highlight=False, markup=False
            )
        elif self.style == "json":
            self._line({"event": event, "text": text, **facts})

    def _show(self, bar: Bar, elapsed_s: float, facts: dict[str, object]) -> None:
        if self.style == "bar" and self._live is not None:
            live, tasks = self._live
            shown = "  ".join(f"{name} {_short(value)}" for name, value in facts.items())
            if id(bar) in tasks:
                live.update(tasks[id(bar)], completed=bar.done, facts=shown)
        elif self.style == "json":
            rate = bar.done / elapsed_s if elapsed_s > 0 else 0.0
            left_s = (bar.total - bar.done) / rate if rate > 0 else None
            event = {"event": "progress", "title": bar.title, "done": bar.done, "total": bar.total}
            timing = {"unit": bar.unit, "rate_per_s": _rounded(rate), "left_s": _rounded(left_s)}
            self._line({**event, **timing, **facts})

    def _line(self, record: dict[str, object]) -> None:
        sys.stdout.write(json.dumps(record, default=str) + "\n")
        sys.stdout.flush()

    def _console(self) -> Console:
        from rich.console import Console

        return Console()


def _make_live(console: Console) -> Progress:
    from rich import progress as rp

    class RateColumn(rp.ProgressColumn):
        def render(self, task: rp.Task) -> str:
            speed = task.finished_speed or task.speed
            return "" if speed is None else f"{speed:,.1f} {task.fields['unit']}/s"

    return rp.Progress(
        rp.TextColumn("{task.description}", markup=False),  # a file may be named scene[1].tif
        rp.BarColumn(bar_width=30),
        rp.MofNCompleteColumn(),
        RateColumn(),
        rp.TimeRemainingColumn(),
        rp.TextColumn("{task.fields[facts]}", markup=False),
        console=console,
        transient=True,
    )


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
