"""What moves in a terminal: a bar in one line, or a panel of it with what is known meanwhile.

predict a.tif ━━━━━━━━━━━━━━╸━━━━━━━ 41/64 12.1 tile/s 0:00:02

╭─ train ──────────────────────────────────────────────────────────────╮
│ ━━━━━━━━━━━━━━━━━━━━━━━╸━━━━━━━━━━━━━━ 120/252  2.1 step/s  0:01:02  │
│ loss 0.4321     mean IoU 0.7104   17 samples/s    waiting 3 %        │
╰──────────────────────────────────────────────────────────────────────╯
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol

from rich import progress as rp
from rich.columns import Columns
from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.text import Text

from outsize.units import format_bytes

_BAR_CHARS = 30
_PER_SECOND = 4  # a panel is drawn again


class LiveView(Protocol):
    """What stands in a terminal while a bar goes on."""

    console: Console

    def update(self, done: int, facts: Mapping[str, object]) -> None:
        """Show how far it is, and what is known."""


class _Line:
    def __init__(self, bars: rp.Progress, task: rp.TaskID) -> None:
        self.console, self._bars, self._task = bars.console, bars, task

    def update(self, done: int, facts: Mapping[str, object]) -> None:
        """Show the facts of this moment."""
        shown = "  ".join(f"{name} {_short(value)}" for name, value in facts.items())
        self._bars.update(self._task, completed=done, facts=shown)


class _Panel:
    def __init__(self, bars: rp.Progress, task: rp.TaskID, title: str) -> None:
        self.console, self._bars, self._task, self._title = bars.console, bars, task, title
        self._known: dict[str, object] = {}

    def update(self, done: int, facts: Mapping[str, object]) -> None:
        """Show what is known, each fact until another takes its place."""
        self._bars.update(self._task, completed=done)
        self._known.update(facts)

    def __rich__(self) -> Panel:
        known = [Text(text_of(name, value)) for name, value in self._known.items() if value is not None]
        below = [Columns(known, padding=(0, 3), expand=True)] if known else []
        return Panel(Group(self._bars, *below), title=self._title, title_align="left", border_style="dim")


@contextmanager
def line_of(console: Console, title: str, total: int, unit: str) -> Iterator[LiveView]:
    """Show a bar in one line while the block runs."""
    columns = [rp.TextColumn("{task.description}", markup=False)]  # a file may be named scene[1].tif
    facts = rp.TextColumn("{task.fields[facts]}", markup=False)
    with rp.Progress(
        *columns, *_columns(rp.BarColumn(_BAR_CHARS)), facts, console=console, transient=True
    ) as bars:
        yield _Line(bars, bars.add_task(title, total=total, unit=unit, facts=""))


@contextmanager
def panel_of(console: Console, title: str, total: int, unit: str) -> Iterator[LiveView]:
    """Show a bar and the facts of its work in a panel while the block runs."""
    bars = rp.Progress(*_columns(rp.BarColumn(None)), console=console, expand=True)
    shown = _Panel(bars, bars.add_task("", total=total, unit=unit), title)
    with Live(shown, console=console, transient=True, refresh_per_second=_PER_SECOND):
        yield shown


def text_of(name: str, value: object) -> str:
    """Write a fact by the unit in its name: gpu_bytes, waiting_share, samples_per_s."""
    if isinstance(value, int | float) and name.endswith("_bytes"):
        return f"{_words(name, '_bytes')} memory {format_bytes(int(value))}"
    if isinstance(value, int | float) and name.endswith(("_share", "_use")):
        return f"{_words(name, '_share')} {value:.0%}"
    if isinstance(value, int | float) and name.endswith("_per_s"):
        return f"{value:,.3g} {_words(name, '_per_s')}/s"
    return f"{_words(name)} {_short(value)}"


def _words(name: str, unit: str = "") -> str:
    return name.removesuffix(unit).replace("_", " ").replace("gpu", "GPU")


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _columns(bar: rp.BarColumn) -> list[rp.ProgressColumn]:
    return [bar, rp.MofNCompleteColumn(), _Rate(), rp.TimeRemainingColumn()]


class _Rate(rp.ProgressColumn):
    def render(self, task: rp.Task) -> str:
        """Return how much is done in a second."""
        speed = task.finished_speed or task.speed
        return "" if speed is None else f"{speed:,.1f} {task.fields['unit']}/s"
