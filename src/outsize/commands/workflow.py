"""`outsize run WORKFLOW`: the verbs of jobs, those alone whose inputs have changed, with a timeline at the end."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from outsize.errors import JobError, explain
from outsize.files.locks import holding
from outsize.job import load_workflow
from outsize.progress import Reporter
from outsize.runs import output_errors, write_text
from outsize.workflow.records import Records
from outsize.workflow.running import run_stages
from outsize.workflow.snakefile import snakefile
from outsize.workflow.stages import stages_of
from outsize.workflow.timeline import as_json, timeline_lines


def run(
    path: Path,
    *,
    forced: Sequence[str],
    dry: bool,
    snakemake: Path | None,
    reporter: Reporter,
    take_over: bool = False,
) -> None:
    """Run a workflow; `dry`: say what would run, and why; `snakemake`: write it as a Snakefile instead."""
    from outsize import __version__

    workflow = load_workflow(path)
    stages = stages_of(path, workflow)
    folder = Path(workflow.records or f"runs/{path.stem}-workflow")
    unknown = set(forced) - {stage.name for stage in stages}
    if unknown:
        need = f"one of {', '.join(stage.name for stage in stages)}"
        raise JobError(explain("--force names no stage", ", ".join(sorted(unknown)), need, "correct it"))
    records = Records(folder, __version__)
    if snakemake is not None:
        write_text(snakemake, snakefile(stages, str(folder / "marks")))
        reporter.say("snakemake", f"{snakemake}: {len(stages)} rules")
        return
    if dry:
        running: set[str] = set()
        for stage in stages:
            before = running.intersection(stage.after)
            why = "it is forced" if stage.name in forced else records.why(stage)
            if not why and before:
                why = f"perhaps: {', '.join(sorted(before))} runs before it"
            running |= {stage.name} if why else set()
            reporter.say("stage", f"{stage.name}: {f'would run, {why}' if why else 'as it was'}", why=why)
        return
    with output_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with holding(folder / ".outsize.lock", f"workflow {path}", "run", take_over=take_over):
        laps = run_stages(stages, records, forced, reporter)
        if laps:
            write_text(folder / "timeline.json", as_json(laps) + "\n")
    reporter.say("timeline", "\n".join(timeline_lines(laps)))
