"""What moves in a terminal: a panel of a bar and facts, at any width; facts by the unit in their name."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from outsize.progress import Reporter
from outsize.progress.live import panel_of, text_of


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("loss", 0.43214, "loss 0.4321"),
        ("gpu_use", 0.931, "GPU use 93%"),
        ("waiting_share", 0.03, "waiting 3%"),
        ("gpu_bytes", 5 << 30, "GPU memory 5.0 GiB"),
        ("host_bytes", 1 << 30, "host memory 1.0 GiB"),
        ("samples_per_s", 16.84, "16.8 samples/s"),
        ("scene", "a[1].tif", "scene a[1].tif"),
    ],
)
def test_a_fact_is_written_by_the_unit_in_its_name(name: str, value: object, text: str) -> None:
    assert text_of(name, value) == text


@pytest.mark.parametrize("width", [80, 120])
def test_a_panel_keeps_each_fact_until_another_takes_its_place(width: int) -> None:
    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=True)
    with panel_of(console, "train", 10, "step") as panel:
        panel.update(1, {"loss": 1.25, "gpu_bytes": 5 << 30, "best": 0.5})
        panel.update(4, {"loss": 0.75})
        console.print(panel)
    plain = re.sub("\x1b\\[[0-9;?]*[a-zA-Z]", "", out.getvalue())
    lines = plain.splitlines()
    last = plain[plain.rindex("╭") :]
    for told in ("train", "4/10", "loss 0.75", "GPU memory 5.0 GiB", "best 0.5"):
        assert told in last, told
    assert "1.25" not in last
    assert max(map(len, lines)) <= width


def test_facts_wait_until_they_are_shown_and_those_beside_are_asked_then(
    capsys: pytest.CaptureFixture[str],
) -> None:
    reporter = Reporter("json")
    with reporter.beside(lambda: {"gpu_use": 0.5}), reporter.bar("train", 3, "step") as bar:
        bar.advance()
        bar.advance(1, loss=2.0)  # within a second of the one before: not shown
        bar.advance()
    first, last = capsys.readouterr().out.splitlines()
    assert '"loss"' not in first
    assert '"gpu_use": 0.5' in first
    assert '"loss": 2.0' in last
