"""Gathers what a job needs elsewhere, and writes it as one archive or folder.

data.jsonl <-- files_of (data)      run/ <-- checkpoints, plan, lines of the training
job.toml   <-- portable             start/ <-- weights that a training not begun yet begins from
manifest.jsonl, pack.json <-- of all of these, which are written behind them
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from outsize.errors import OutputError, explain, listed
from outsize.files.beside import written_beside
from outsize.files.manifest import Finished
from outsize.files.ownership import MADE_BY, refuse_others
from outsize.job import Job, dump_job, load_job
from outsize.packing.archive import Content, is_archive, refuse_name, write_archive, write_folder
from outsize.packing.environment import apptainer, dockerfile, lock_text, make_wheel, wheel_name
from outsize.packing.names import (
    APPTAINER,
    DATA,
    DATA_LIST,
    DOCKER,
    HEAD,
    JOB,
    LOCK,
    MANIFEST,
    RUN,
    SCRIPT,
    START,
    VERSION,
)
from outsize.packing.portable import inner_of, portable, root_of
from outsize.planning.slurm import Allocation, slurm_script
from outsize.progress import Reporter
from outsize.runs import RunFolder, open_run, output_errors
from outsize.session.resuming import resumes

_IGNORED = f"*\n!{LOCK}\n!*.whl\n"  # data and checkpoints are no part of an image


@dataclass(frozen=True)
class Gathered:
    """What goes into a pack, but for its lists and its head."""

    root: Path  # of the data
    data: tuple[Content, ...]
    contents: tuple[Content, ...]
    starts: Mapping[str, str]  # weights to begin from: their names in the pack, by keys of the job
    inner: str  # below the root: where patterns begin, or the dataset is
    step: int | None  # that the training got to


def gather(job: Job, name: str, allocation: Allocation) -> Gathered:
    """Find what a job and its run consist of; refuses a run that the job cannot go on with."""
    from outsize.data.formats import files_of
    from outsize.train.checkpoint import saved_step

    run = RunFolder(Path(job.run))
    begun = resumes(run, job, "resume") if run.state.exists() else False
    files = files_of(job.data, job.seed)
    root = root_of(job.data, files)
    starting = {} if begun else _starting(job)
    starts = {key: inside for key, (inside, _) in starting.items()}
    contents = [Content(JOB, dump_job(portable(job, root, starts)).encode())]
    words = ["train", JOB, "--resume"]
    script = slurm_script(
        allocation, words, name=name, folder=Path(), log=Path(f"{name}.out"), python="python"
    )
    made = {SCRIPT: script, LOCK: lock_text(), DOCKER: dockerfile(), APPTAINER: apptainer()}
    contents += [Content(each, text.encode()) for each, text in {**made, ".dockerignore": _IGNORED}.items()]
    contents.append(Content(wheel_name(), make_wheel()))
    contents += [Content(each, path) for _, files_in in starting.values() for each, path in files_in.items()]
    contents += _of_run(run, root) if begun else []
    data = tuple(Content(each.relative_to(root).as_posix(), each) for each in files)
    step = saved_step(run.state) if begun else None
    return Gathered(root, data, tuple(contents), starts, inner_of(job.data, root), step)


def _starting(job: Job) -> dict[str, tuple[str, dict[str, Path]]]:
    """Return what a training begins from, by key of the job: its name in the pack, and the files of it."""
    found: dict[str, tuple[str, dict[str, Path]]] = {}
    weights = Path(str(job.model.options.get("weights", ""))).expanduser()
    if weights.is_file():
        name = f"{START}/{weights.name}"
        found["model.weights"] = name, {name: weights}
    if job.train.init is not None:
        run, name = open_run(Path(job.train.init)), f"{START}/run"
        inside = {f"{name}/{each.relative_to(run.path).as_posix()}": each for each in (run.job, run.best)}
        found["train.init"] = name, inside
    return found


def _of_run(run: RunFolder, root: Path) -> list[Content]:
    """Return what a training goes on from, and its course so far; scenes and what was made of them stay here."""
    from outsize.train.checkpoint import earlier

    cards = [each.with_suffix(".json") for each in (run.best, run.last)]
    kept = [
        run.state,
        earlier(run.state),
        run.best,
        run.last,
        *cards,
        run.metrics,
        run.plan,
        run.facts,
        run.init,
    ]
    kept += [
        run.accounts,
        run.path / "usage.json",
        run.schedule,
        *sorted(run.events.glob("events.out.tfevents.*")),
    ]
    inside = [
        Content(f"{RUN}/{each.relative_to(run.path).as_posix()}", each) for each in kept if each.is_file()
    ]
    return [Content(f"{RUN}/{JOB}", dump_job(portable(load_job(run.job), root, {})).encode()), *inside]


def write_pack(
    target: Path,
    found: Gathered,
    head: Mapping[str, Any],
    *,
    takes_data: bool,
    overwrite: bool,
    reporter: Reporter,
) -> int:
    """Write a pack whole or not at all, and return its size."""
    _refuse_target(target, overwrite)
    total_bytes = sum(each.source.stat().st_size for each in found.data if isinstance(each.source, Path))
    with output_errors(target), ExitStack() as stack:
        bar = stack.enter_context(reporter.bar("checksums", total_bytes, "byte"))
        listed_data = [each.finished(bar.advance) for each in found.data]
    along = [Content(f"{DATA}/{each.name}", each.source) for each in found.data] if takes_data else []
    lists = {MANIFEST: _lines([each.finished() for each in found.contents]), DATA_LIST: _lines(listed_data)}
    tree = {
        "pack": VERSION,
        "about": MADE_BY,
        **head,
        "step": found.step,
        "starts": dict(found.starts),
        "data": {
            "files": len(listed_data),
            "bytes": sum(each.size_bytes for each in listed_data),
            "along": takes_data,
            "root": str(found.root),
            "inner": found.inner,
        },
        "lists": {name: Content(name, text).finished().sha256 for name, text in lists.items()},
    }
    heads = [Content(HEAD, (json.dumps(tree, indent=2, default=str) + "\n").encode())]
    heads += [Content(name, text) for name, text in lists.items()]
    every = [*heads, *found.contents, *along]
    sizes = [
        each.source.stat().st_size if isinstance(each.source, Path) else len(each.source) for each in every
    ]
    for each in every:
        refuse_name(each.name, target)
    with output_errors(target), reporter.bar("pack", sum(sizes), "byte") as bar:
        target.parent.mkdir(parents=True, exist_ok=True)
        if is_archive(target):
            with written_beside(target) as partial_file:
                zipped = target.suffix in (".gz", ".tgz")
                write_archive(partial_file, every, zipped=zipped, tell=bar.advance)
        else:
            _write_folder(target, every, bar.advance)
    return sum(sizes)


def _write_folder(target: Path, contents: Sequence[Content], tell: Any) -> None:
    is_new = not target.exists()
    target.mkdir(exist_ok=True)
    try:
        write_folder(target, contents, tell=tell)
    except BaseException:
        with suppress(OSError):
            for each in list(target.iterdir()):
                (shutil.rmtree if each.is_dir() else Path.unlink)(each)
            if is_new:
                target.rmdir()
        raise


def _refuse_target(target: Path, overwrite: bool) -> None:
    if target.name.endswith((".zst", ".xz", ".bz2", ".zip")):
        need, remedy = (
            "a folder, .tar or .tar.gz",
            "leave the compression to .tar.gz: weights hardly shrink by any",
        )
        raise OutputError(explain("no such kind of pack", target.name, need, remedy))
    if is_archive(target):
        if not overwrite:
            refuse_others([target], "move it, choose another name with --out, or add --overwrite")
        return
    inside = sorted(each.name for each in target.iterdir()) if target.is_dir() else []
    if target.is_file() or inside:
        found = listed(inside) or "a file"
        need, remedy = "a new or empty folder, or a name that ends in .tar", "choose another with --out"
        raise OutputError(explain(f"the pack cannot be {target}", found, need, remedy))


def _lines(files: Sequence[Finished]) -> bytes:
    dumped = (
        json.dumps({"name": each.name, "size_bytes": each.size_bytes, "sha256": each.sha256})
        for each in files
    )
    return "".join(f"{line}\n" for line in dumped).encode()


def head_of(
    name: str,
    machine: Mapping[str, Any],
    plan: Mapping[str, Any],
    request: Mapping[str, Any],
    allocation: Allocation,
) -> dict[str, Any]:
    """Return what the head tells of the job, of the machine that packed it, and of what to ask for."""
    from outsize.measure.origin import origin

    about = {"job": name, **origin(), "machine": machine, "plan": plan}
    return {**about, "request": request, "allocation": asdict(allocation)}
