"""Says how a long verb is getting on: a live bar in a terminal, JSON lines elsewhere."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

from outsize import stopping
from outsize.progress.activities import Activities

if TYPE_CHECKING:
    from rich.console import Console

    from outsize.progress.live import LiveView

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
        self._facts: dict[str, object] = {}  # not shown yet

    def advance(self, amount: int = 1, **facts: object) -> None:
        """Count `amount` more as done; `facts` (a loss, a file name) are shown beside the bar."""
        self.done += amount
        self._facts.update(facts)
        stopping.check()
        now_s = time.monotonic()
        if self.done >= self.total or now_s - self._last_s >= _MIN_INTERVAL_S:
            self._last_s = now_s
            facts, self._facts = self._facts, {}
            self._reporter._show(self, now_s - self._start_s, facts)


class Reporter:
    """Where a command's progress goes; lives as long as the command."""

    def __init__(self, style: Style = "quiet") -> None:
        self.style = style
        self._live: tuple[LiveView, Bar] | None = None
        self._look: Callable[[], Mapping[str, object]] = dict
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
        self,
        title: str,
        total: int,
        unit: str,
        *,
        activity: str | None = None,
        parallel: int = 1,
        panel: bool = False,
    ) -> Iterator[Bar]:
        """Show a bar with rate and time left while the block runs, which is an activity (default: of its title).

        In a `panel`, facts stand below it until others take their place.
        """
        bar = Bar(self, title, total, unit)
        with self.doing(activity or title, parallel=parallel):
            if self.style == "bar":
                with self._shown(bar, panel):
                    yield bar
            else:
                yield bar

    @contextmanager
    def beside(self, look: Callable[[], Mapping[str, object]]) -> Iterator[None]:
        """Show what `look` tells beside all bars of the block: it is asked when a bar is shown again."""
        before, self._look = self._look, look
        try:
            yield
        finally:
            self._look = before

    @contextmanager
    def _shown(self, bar: Bar, panel: bool) -> Iterator[None]:
        from outsize.progress.live import line_of, panel_of

        make = panel_of if panel else line_of
        with make(self._console(), bar.title, bar.total, bar.unit) as live:
            before, self._live = self._live, (live, bar)
            try:
                yield
            finally:
                self._live = before

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
        if self.style == "quiet":
            return
        facts = {**facts, **self._look()}
        if self.style == "bar" and self._live is not None:
            live, shown = self._live
            if shown is bar:
                live.update(bar.done, facts)
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


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
