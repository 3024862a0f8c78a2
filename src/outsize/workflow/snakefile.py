"""The stages of a workflow as a Snakefile, for those who have Snakemake: the same commands in the same order."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence

from outsize.workflow.running import words_of
from outsize.workflow.stages import WorkflowStage

_HEAD = """\
# Written by `outsize run --snakemake`. Run it where the workflow would be run: snakemake --cores 4
# A stage is done when its mark is there; a file that it reads and that is newer makes it run again.

rule all:
    input: {last}
"""
_RULE = """
rule {rule}:
    input: {inputs}
    output: touch({output})
    resources: {uses}=1
    shell: {shell}
"""


def snakefile(stages: Sequence[WorkflowStage], marks: str) -> str:
    """Return the text of a Snakefile; `marks` is the folder for marks of what is done."""
    followed = {name for stage in stages for name in stage.after}
    last = [_mark(marks, stage.name) for stage in stages if stage.name not in followed]
    rules = [_rule(stage, marks) for stage in stages]
    return _HEAD.format(last=", ".join(map(json.dumps, last))) + "".join(rules)


def _rule(stage: WorkflowStage, marks: str) -> str:
    # folders and what earlier stages write are known by marks alone: their own times change with every file in them
    own = [str(path) for path in stage.inputs if path.is_file()] if not stage.after else []
    inputs = [*(_mark(marks, name) for name in stage.after), *own]
    words = shlex.join(["outsize", *words_of(stage, goes_on=False)])
    return _RULE.format(
        rule=stage.name.replace(":", "_").replace("-", "_").replace(".", "_"),
        inputs=", ".join(map(json.dumps, inputs)),
        output=json.dumps(_mark(marks, stage.name)),
        uses=stage.uses,
        shell=json.dumps(words.replace("{", "{{").replace("}", "}}")),
    )


def _mark(marks: str, name: str) -> str:
    return f"{marks}/{name.replace(':', '-')}.done"
