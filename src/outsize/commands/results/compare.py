"""`outsize compare RUN...`: runs and benches side by side, with published ones, and what other machines would do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outsize.accounts import accounted
from outsize.errors import JobError, OutsizeError, explain
from outsize.files.ownership import refuse_others
from outsize.job import load_job
from outsize.measurement import Measurement, read_measurement
from outsize.progress import Reporter
from outsize.runs import open_run, write_text
from outsize.units import format_bytes

if TYPE_CHECKING:
    from outsize.report.gather import Story


def compare(
    paths: Sequence[Path],
    *,
    out: Path,
    published: bool,
    elsewhere: bool,
    prices: Sequence[str],
    overwrite: bool,
    reporter: Reporter,
) -> Path:
    """Lay out runs, files of measurements and published tables as one HTML page."""
    from outsize import __version__
    from outsize.report.compared import Compared, make_comparison
    from outsize.report.gather import gather
    from outsize.tasks import chapter_of

    if not paths and not published:
        need, remedy = "run folders or files of `outsize bench`", "name some, or give --published"
        raise JobError(explain("nothing to compare", "no run", need, remedy))
    if not overwrite:
        refuse_others([out], "move it, choose another name with --out, or add --overwrite")
    stories = [gather(path) for path in paths if not path.is_file()]
    with accounted(stories[0].run, "compare", reporter) if stories else nullcontext():
        measured = [(path.stem, read_measurement(path)) for path in paths if path.is_file()]
        measured += [found for story in stories for found in _benches(story)]
        predictions, missing = _everywhere(stories, reporter) if elsewhere else ([], [])
        by_name = dict(map(_price, prices))
        foretold = (
            _foretold([each for _, each in measured], reporter) if published and elsewhere else ([], "")
        )
        shown = Compared(stories, measured, predictions, missing, published, by_name, *foretold)
        when = datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z")
        page = make_comparison(shown, chapter_of, version=__version__, when=when)
        write_text(out, page)
    num_bytes = len(page.encode("utf-8"))
    reporter.say("compared", f"{out}, {format_bytes(num_bytes)}", path=str(out), missing=missing)
    return out


def _foretold(measured: Sequence[Measurement], reporter: Reporter) -> tuple[list[dict[str, Any]], str]:
    """Predict the steps that others published, and say how far off that is."""
    from outsize.planning.published import predict_published, said_of

    steps = predict_published(measured)
    reporter.say("foretold", said_of(steps), steps=[each.as_dict() for each in steps])
    return [each.as_dict() for each in steps], said_of(steps)


def _benches(story: Story) -> Iterator[tuple[str, Measurement]]:
    for path in sorted(story.run.bench.glob("*.json")):
        if not path.stem.endswith("-trace"):
            yield story.name, read_measurement(path)


def _everywhere(
    stories: Sequence[Story], reporter: Reporter
) -> tuple[list[tuple[str, list[dict[str, Any]]]], list[str]]:
    """Predict every run's job for every machine; what cannot be is named with its reason."""
    from outsize.planning.elsewhere import predict_elsewhere

    found, missing = [], []
    for story in stories:
        try:
            job = load_job(open_run(story.run.path).job)
            found.append((story.name, predict_elsewhere(job, reporter)))
        except OutsizeError as error:
            missing.append(f"{story.name} is not predicted for other machines: {error}")
            reporter.say("warning", f"warning: {missing[-1]}")
    return found, missing


def _price(text: str) -> tuple[str, float]:
    name, _, price = text.rpartition("=")
    try:
        return name, float(price)
    except ValueError:
        need, remedy = "the name of a run and what its machine costs an hour", "write --price NAME=2.5"
        raise JobError(explain("--price not understood", repr(text), need, remedy)) from None
