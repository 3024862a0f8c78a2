"""`outsize report RUN...`: one page to show a colleague."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from outsize.progress import Reporter
from outsize.runs import RunFolder, write_text
from outsize.units import format_bytes


def report(runs: Sequence[Path], *, out: Path | None, reporter: Reporter) -> Path:
    """Lay out one or several runs as one HTML file that needs nothing else; default: report.html of the first."""
    from outsize import __version__
    from outsize.report.page import make_page

    when = datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z")
    page = make_page(runs, version=__version__, when=when)
    target = out or RunFolder(runs[0]).report
    write_text(target, page)
    num_bytes = len(page.encode("utf-8"))
    reporter.say("report", f"{target}, {format_bytes(num_bytes)}", path=str(target), num_bytes=num_bytes)
    return target
