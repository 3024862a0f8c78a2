"""Reads, checks and writes job files; single values may be set from the command line."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from outsize.errors import JobError, explain
from outsize.files.plain import read_plain_text
from outsize.files.trees import toml_tree
from outsize.job.labels import for_task
from outsize.job.mistakes import mistake
from outsize.job.whole import Job, LimitsSection, WorkflowFile

MOST_JOB_BYTES = 2**24  # a job of 100,000 images, each by its name
_Checked = TypeVar("_Checked", bound=BaseModel)


def load_job(path: Path, overrides: Sequence[str] = ()) -> Job:
    """Read and check a job file; `overrides` are texts such as "train.lr=0.01"."""
    tree = _read_tree(path)
    overridden = [_apply_override(tree, override) for override in overrides]
    job = check_job(tree, str(path), overridden=overridden)
    # the paths in a job that a run keeps of itself are absolute already, and stay as they are
    folder = path.parent.resolve() / job.data.root
    parts = ("images", "train", "val", "test")
    update: dict[str, Any] = {part: _anchored(getattr(job.data, part), folder) for part in parts}
    if job.data.is_dataset:
        update["root"] = str(folder)
    data = job.data.model_copy(update=update)
    run = job.run or f"runs/{path.stem}"
    return job.model_copy(update={"data": data, "run": str(Path(run))})


def load_section(path: Path, name: str, section: type[_Checked], overrides: Sequence[str] = ()) -> _Checked:
    """Read and check one section of a job file, whatever else is in it."""
    tree = _read_tree(path)
    overridden = [_apply_override(tree, override) for override in overrides]
    found = tree.get(name)
    if not isinstance(found, dict):
        what = "nothing" if found is None else repr(found)
        raise JobError(explain(f"{path} has no section [{name}]", what, "that section", "write it"))
    return _checked(section, found, str(path), place=(name,), overridden=overridden)


def load_workflow(path: Path) -> WorkflowFile:
    """Read and check a workflow file; a job is a workflow of its own."""
    tree = _read_tree(path)
    return _checked(WorkflowFile, {"jobs": path.name} if "data" in tree else tree, str(path))


def has_section(path: Path, name: str) -> bool:
    """Say whether a job file has a section."""
    return name in _read_tree(path)


def _read_tree(path: Path) -> dict[str, Any]:
    try:
        text = read_plain_text(path, MOST_JOB_BYTES)
    except (OSError, UnicodeDecodeError) as error:
        what = getattr(error, "strerror", None) or "not UTF-8 text"
        raise JobError(
            explain(f"cannot read job {path}", what, "a readable TOML file", "check the path")
        ) from error
    try:
        return toml_tree(text)
    except ValueError as error:
        raise JobError(
            explain(f"job {path} is no TOML", str(error), "valid TOML", "mend that line")
        ) from error


def check_job(tree: Mapping[str, Any], name: str, *, overridden: Collection[str] = ()) -> Job:
    """Check a parsed job; the first mistake becomes a one-line error. Some keys may be `overridden` by --set."""
    try:
        tree = for_task(tree)
    except JobError as error:
        raise JobError(f"{name}: {error}") from None
    return _checked(Job, tree, name, overridden=overridden)


def check_limits(tree: Mapping[str, Any], name: str) -> LimitsSection:
    """Check a section `limits` that comes without a job."""
    return _checked(LimitsSection, tree, name, place=("limits",))


def dump_job(job: Job) -> str:
    """Write a job as TOML, defaults included."""
    import tomli_w

    return tomli_w.dumps(job.model_dump(mode="json", exclude_none=True))


def _checked(
    section: type[_Checked],
    tree: Mapping[str, Any],
    name: str,
    *,
    place: tuple[str, ...] = (),
    overridden: Collection[str] = (),
) -> _Checked:
    try:
        return section.model_validate(tree)
    except ValidationError as error:
        raise JobError(mistake(error, section, name, place=place, overridden=overridden)) from None
    except JobError as error:  # of a class map that is not known
        raise JobError(f"{name}: {error}") from None


def _anchored(patterns: tuple[str, ...], folder: Path) -> tuple[str, ...]:
    return tuple(str(folder / pattern) for pattern in patterns)


def _apply_override(tree: dict[str, Any], override: str) -> str:
    """Set one value, and return its key."""
    key, equals, text = override.partition("=")
    if not equals or not key.strip():
        raise JobError(
            explain("--set not understood", repr(override), "KEY=VALUE", "write e.g. --set train.lr=0.01")
        )
    try:
        value = toml_tree(f"value = {text}")["value"]
    except ValueError:
        value = text  # a bare word is a string
    *sections, name = key.strip().split(".")
    for section in sections:
        tree = tree.setdefault(section, {})
        if not isinstance(tree, dict):
            raise JobError(
                explain(
                    "--set reaches into a value", repr(override), "a section before the dot", "check the key"
                )
            )
    tree[name] = value
    return key.strip()
