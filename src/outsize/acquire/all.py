"""Fetches all files of a list into one folder, several at once, and writes down which are there."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import Future, as_completed
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from outsize.acquire.fetch import FetchError, fetch, opener
from outsize.acquire.listing import Remote
from outsize.acquire.pace import Manners, Pace
from outsize.files.manifest import MANIFEST, Finished, Manifest, sha256_of
from outsize.progress import Reporter
from outsize.runs import output_errors
from outsize.threads import Threads
from outsize.units import format_bytes


@dataclass(frozen=True)
class Missed:
    """A file that could not be fetched, and why."""

    remote: Remote
    why: str


@dataclass(frozen=True)
class Acquired:
    """What is there after all was tried."""

    num_fetched: int
    num_there: int  # before
    num_bytes: int  # fetched
    missed: tuple[Missed, ...]


def fetch_all(
    remotes: Sequence[Remote], folder: Path, *, manners: Manners, version: str, reporter: Reporter
) -> Acquired:
    """Fetch what is not there yet; one file that cannot be fetched keeps no other from it.

    Raises OutputError where the disk is at fault: then nothing else would do better.
    """
    manifest = Manifest(folder / MANIFEST)
    todo = [each for each in remotes if not _is_there(each, manifest)]
    pace, opened_by = Pace(manners), opener(version)
    missed: list[Missed] = []
    num_bytes = 0

    def tell(arrived: int) -> None:
        nonlocal num_bytes
        num_bytes += arrived

    def one(remote: Remote) -> None:
        partial = fetch(remote, folder, opened_by, pace, tell)
        target = folder / remote.name
        if os.path.lexists(target) and manifest.get(remote.name) is None:
            raise FetchError(f"a file of other make lies at {target}; move it")
        with output_errors(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            facts = {"url": without_secrets(remote.url)}
            manifest.note(Finished(remote.name, partial.stat().st_size, sha256_of(partial), facts))
            partial.replace(target)
            partial.with_name(f"{partial.name}.json").unlink(missing_ok=True)

    with (
        reporter.bar("acquire", len(todo), "file", parallel=manners.parallel) as bar,
        Threads(manners.parallel, "acquire", "fetches files") as threads,
    ):
        futures: dict[Future[None], Remote] = {threads.submit(one, each): each for each in todo}
        try:
            for future in as_completed(futures):
                remote = futures[future]
                try:
                    with output_errors(folder / remote.name):
                        threads.result(future)
                except FetchError as error:
                    missed.append(Missed(remote, str(error)))
                    reporter.say("missed", f"not fetched: {without_secrets(remote.url)}: {error}")
                bar.advance(1, fetched=format_bytes(num_bytes))
        except BaseException:
            pace.stop.set()
            threads.shutdown(wait=True, cancel_futures=True)
            raise
    return Acquired(len(todo) - len(missed), len(remotes) - len(todo), num_bytes, tuple(missed))


def without_secrets(url: str) -> str:
    """Return an address without a name, a password or a query, which may hold a key."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def _is_there(remote: Remote, manifest: Manifest) -> bool:
    """Say whether a file is there as the manifest and the list say."""
    known = manifest.get(remote.name)
    if known is None or not manifest.holds(remote.name):
        return False
    return remote.checksum is None or remote.checksum[0] != "sha256" or remote.checksum[1] == known.sha256
