"""Stages that are lines of Python instead of verbs: they take no time, and do what a test wants to see."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from outsize.progress import Reporter
from outsize.runs import RunFolder
from outsize.workflow.records import Records
from outsize.workflow.running import run_stages
from outsize.workflow.stages import WorkflowStage
from outsize.workflow.timeline import Lap

MAIN = (
    "import sys, time; from pathlib import Path; from outsize import stopping; stopping.end_with_parent(); "
    "exec(sys.argv[2])"
)


def stage(folder: Path, name: str, code: str, after: tuple[str, ...] = (), **how: Any) -> WorkflowStage:
    """Return a stage NAME that reads NAME.in and what those before it left, runs `code`, and leaves NAME.out."""
    own = folder / f"{name}.in"
    if not own.exists():
        own.write_text(name)
    inputs = (own, *(folder / f"{each}.out" for each in after))
    verb = how.pop("verb", "evaluate")
    words = (verb, f"here = Path({str(folder)!r}); {code}")
    settings = how.pop("settings", "")
    return WorkflowStage(
        name, verb, words, after, settings, inputs, (folder / f"{name}.out",), RunFolder(folder / "run")
    )


def chain(folder: Path, **codes: str) -> list[WorkflowStage]:
    """Return stages one after the other; each adds a letter to a file `ran`, and leaves what its inputs say."""
    found: list[WorkflowStage] = []
    for name, code in codes.items():
        after = (found[-1].name,) if found else ()
        texts = " + ".join(
            f"(here / '{each}').read_text()" for each in (f"{name}.in", *(f"{e}.out" for e in after))
        )
        work = f"open(here / 'ran', 'a').write({name!r}); {code or 'pass'}; (here / '{name}.out').write_text({texts})"
        found.append(stage(folder, name, work, after))
    return found


def run(folder: Path, stages: list[WorkflowStage], forced: tuple[str, ...] = ()) -> tuple[str, list[Lap]]:
    """Run stages; return the letters of those that ran."""
    (folder / "ran").write_text("")
    laps = run_stages(stages, Records(folder / "records", "1"), forced, Reporter("quiet"))
    return (folder / "ran").read_text(), laps
