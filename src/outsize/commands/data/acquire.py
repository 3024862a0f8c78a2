"""`outsize acquire LIST`: fetches the files of a list, and what is missing of them when it is repeated."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from urllib.parse import urlsplit

from outsize.accounts import accounted
from outsize.acquire.all import Acquired, Missed, fetch_all, without_secrets
from outsize.acquire.fetch import FetchError, fetch_page, opener
from outsize.acquire.listing import Remote, Times, read_lines
from outsize.acquire.pace import Manners, Pace
from outsize.errors import DataError, JobError, explain
from outsize.files.locks import holding
from outsize.files.ownership import refuse_place
from outsize.files.plain import read_plain_text
from outsize.job import AcquireSection, has_section, load_job, load_section
from outsize.progress import Reporter
from outsize.runs import RunFolder, leaving_no_empty_folder, output_errors
from outsize.units import format_bytes, format_count

_MOST_LIST_BYTES = 2**28  # a million addresses
_LOCK = ".outsize.lock"


def acquire(
    source: str,
    *,
    to: Path | None,
    changes: dict[str, object],
    reporter: Reporter,
    overrides: Sequence[str] = (),
    take_over: bool = False,
) -> Acquired:
    """Fetch what a list, a job with a section [acquire], or one address names; `changes` are keys of that section."""
    section, lines, folder = _read(source, to, overrides)
    section = section.model_copy(update=changes)
    run = _run_of(source, overrides)
    with accounted(run, "acquire", reporter, begins=True) if run else nullcontext():
        return acquire_section(section, lines, folder, reporter=reporter, take_over=take_over)


def acquire_section(
    section: AcquireSection, lines: list[str], folder: Path, *, reporter: Reporter, take_over: bool = False
) -> Acquired:
    """Fetch what the lines of a list name into a folder. Raises DataError where files are missing at the end."""
    from outsize import __version__

    manners = Manners(section.parallel, section.rate_per_s, section.tries, timeout_s=section.timeout_s)
    remotes = _expand(section, lines, manners, __version__)
    refuse_place(folder, "the folder of what is fetched", "name another one with --to")
    with leaving_no_empty_folder(folder):
        with output_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
        with holding(folder / _LOCK, f"folder {folder}", "acquire", take_over=take_over):
            begun_s = time.monotonic()
            done = fetch_all(remotes, folder, manners=manners, version=__version__, reporter=reporter)
            shared = {"shared_s": round(time.monotonic() - begun_s, 3), "workers": manners.parallel}
    text = (
        f"{format_count(done.num_fetched, 'file')} fetched ({format_bytes(done.num_bytes)}), "
        f"{done.num_there:,} there before, {len(done.missed):,} missing: {folder}"
    )
    missed = [{"url": without_secrets(each.remote.url), "why": each.why} for each in done.missed]
    reporter.say("acquire", text, fetched=done.num_fetched, there=done.num_there, missed=missed, **shared)
    if done.missed:
        raise _missing(done.missed, len(remotes))
    return done


def _run_of(source: str, overrides: Sequence[str]) -> RunFolder | None:
    """Return the run of a whole job; a list, an address and a section by itself have none."""
    if not source.endswith(".toml") or not has_section(Path(source), "data"):
        return None
    try:
        return RunFolder(Path(load_job(Path(source), overrides).run))
    except JobError:  # of another section: files are fetched all the same
        return None


def section_lines(section: AcquireSection, folder: Path) -> list[str]:
    """Return the lines of the list that a section names, and its own."""
    return [*(_list_lines(folder / section.list) if section.list else ()), *section.urls]


def _read(source: str, to: Path | None, overrides: Sequence[str]) -> tuple[AcquireSection, list[str], Path]:
    """Return settings, lines, and the folder that files go to."""
    if urlsplit(source).scheme in ("http", "https", "file"):
        return AcquireSection(), [source], to or Path("raw")
    path = Path(source)
    if path.suffix != ".toml":
        return AcquireSection(), _list_lines(path), to or Path("raw")
    section = load_section(path, "acquire", AcquireSection, overrides)
    return section, section_lines(section, path.parent), to or path.parent / section.to


def _list_lines(path: Path) -> list[str]:
    try:
        return read_plain_text(path, _MOST_LIST_BYTES).splitlines()
    except (OSError, UnicodeDecodeError) as error:
        found = getattr(error, "strerror", None) or "not UTF-8 text"
        need, remedy = "a text file with an address on each line", "check the path"
        raise DataError(explain(f"cannot read the list {path}", found, need, remedy)) from error


def _expand(section: AcquireSection, lines: list[str], manners: Manners, version: str) -> list[Remote]:
    times = None
    if section.first is not None and section.last is not None and section.step_minutes is not None:
        if section.last < section.first:
            need, remedy = f"no earlier than {section.first}", "exchange them"
            raise JobError(explain("acquire.last is too early", section.last, need, remedy))
        times = Times.of_minutes(section.first, section.last, section.step_minutes)
    pages = opener(version)

    def page(url: str) -> str:
        try:
            return fetch_page(pages, url, Pace(manners))
        except FetchError as error:
            need, remedy = "a page of links", "check the address, or name the files"
            raise DataError(explain(f"cannot list {without_secrets(url)}", error, need, remedy)) from error

    return read_lines(lines, times, page)


def _missing(missed: tuple[Missed, ...], num_all: int) -> DataError:
    first = missed[0]
    found = f"{len(missed):,} missing, first {without_secrets(first.remote.url)} ({first.why})"
    remedy = "repeat the command: it fetches only what is missing"
    return DataError(explain("not all files could be fetched", found, f"all {num_all:,}", remedy))
