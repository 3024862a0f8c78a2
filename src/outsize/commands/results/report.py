"""`outsize report RUN...`: one page to show a colleague."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from outsize.accounts import accounted
from outsize.files.ownership import refuse_others
from outsize.progress import Reporter
from outsize.runs import RunFolder, is_own, write_text
from outsize.units import format_bytes


def report(runs: Sequence[Path], *, out: Path | None, reporter: Reporter, overwrite: bool = False) -> Path:
    """Lay out one or several runs as one HTML file that needs nothing else; default: report.html of the first.

    `overwrite`: also over a file that outsize did not make.
    """
    from outsize import __version__
    from outsize.report.page import make_page
    from outsize.tasks import chapter_of

    first = RunFolder(runs[0])
    target = out or first.report
    if not overwrite and not (out is None and is_own(first)):  # a report of an earlier version has no mark
        refuse_others([target], "move it, choose another name with --out, or add --overwrite")
    with accounted(first, "report", reporter):
        when = datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z")
        page = make_page(runs, chapter_of, version=__version__, when=when)
        write_text(target, page)
        num_bytes = len(page.encode("utf-8"))
        reporter.say("report", f"{target}, {format_bytes(num_bytes)}", path=str(target), num_bytes=num_bytes)
    return target
