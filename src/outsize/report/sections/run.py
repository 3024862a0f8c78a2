"""One run on the page: what its task shows of it, then how it was trained, planned and measured."""

from __future__ import annotations

from outsize.report.gather import Story
from outsize.report.markup import Markup, tag
from outsize.report.parts import Chapter, drawn_from
from outsize.report.sections.accounts import show_accounts
from outsize.report.sections.benches import show_memory, show_scaling, show_sharing
from outsize.report.sections.moves import show_moves
from outsize.report.sections.origins import show_job, show_machine, show_plan, show_times
from outsize.report.sections.stages import show_stages
from outsize.report.sections.training import show_training
from outsize.report.sections.tuning import show_tuning
from outsize.report.sections.usage import show_usage


def show_run(story: Story, chapter: Chapter, number: int, several: bool) -> Markup:
    """Return all sections of a run, under its name where it is one of several."""
    run, model = story.run, story.job["model"]
    options = ", ".join(f"{name} {value}" for name, value in model.items() if name != "name")
    about = f"{model['name']}{f' ({options})' if options else ''}, task {story.job['task']}"
    return tag(
        "div",
        tag("h2", story.name) if several else None,
        tag("p", f"{about}. Run {story.run.path}, finished {story.finished}.", class_="note"),
        chapter.show(story),
        drawn_from(run.tune / "trials.json", "tune", show_tuning, story),
        drawn_from(run.metrics, "train", show_training, story, chapter),
        drawn_from(run.path / "usage.json", "train", show_usage, story),
        drawn_from(run.accounts, "train", show_accounts, story),
        drawn_from(run.path, "train", show_times, story),
        drawn_from(run.schedule, "train", show_stages, story),
        drawn_from(run.metrics, "train", show_moves, story),
        drawn_from(run.plan, "plan", show_plan, story),
        drawn_from(run.bench, "bench memory", show_memory, story),
        drawn_from(run.bench, "bench scaling", show_scaling, story),
        drawn_from(run.bench, "bench share", show_sharing, story),
        drawn_from(run.facts, "plan", show_machine, story),
        show_job(story),
        id=f"run-{number}",
    )
