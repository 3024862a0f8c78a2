"""What is remembered of a workflow between two times: of each stage what it was made of, and what it left.

FOLDER/stages.json      by stage: key (settings, inputs, version), digest of what it left, whether it was finished
FOLDER/contents.json    checksums of files, so that none is read twice
FOLDER/logs/NAME.log    what a stage printed
FOLDER/timeline.json    of the last time
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from outsize.files.trees import read_json_tree
from outsize.runs import write_json
from outsize.workflow.contents import Contents
from outsize.workflow.stages import WorkflowStage, digest_of


@dataclass(frozen=True)
class Noted:
    """What is remembered of a stage."""

    key: str
    left: str | None = None  # None: it was begun, and not finished


class Records:
    """The folder of a workflow."""

    def __init__(self, folder: Path, version: str) -> None:
        self.folder, self._version = folder, version
        self._stages = {name: Noted(**each) for name, each in _read(folder / "stages.json").items()}
        self.contents = Contents(_read(folder / "contents.json"))

    def log(self, stage: WorkflowStage) -> Path:
        """Return where a stage's output goes."""
        return self.folder / "logs" / f"{stage.name.replace(':', '-')}.log"

    def key(self, stage: WorkflowStage) -> str:
        """Return a digest of all that decides what a stage leaves, as it is now."""
        return digest_of([self._version, stage.settings, self.contents.digest(stage.inputs)])

    def why(self, stage: WorkflowStage) -> str:
        """Say why a stage is to be run; nothing where it is not."""
        noted, left = self._stages.get(stage.name), self.contents.digest(stage.outputs)
        if noted is None:
            return "it has not run"
        if noted.key != self.key(stage):
            return "its inputs, its settings or outsize have changed"
        if noted.left is None:
            return "it was not finished"
        if left is None:
            return "what it left is gone"
        return "" if left == noted.left else "what it left has changed"

    def goes_on(self, stage: WorkflowStage) -> bool:
        """Say whether a stage was begun with the same inputs and not finished."""
        noted = self._stages.get(stage.name)
        return noted is not None and noted.left is None and noted.key == self.key(stage)

    def begin(self, stage: WorkflowStage) -> None:
        """Note that a stage begins."""
        self._note(stage, Noted(self.key(stage)))

    def finish(self, stage: WorkflowStage) -> None:
        """Note what a stage has left of what it began with; what has changed meanwhile is seen the next time."""
        self._note(stage, Noted(self._stages[stage.name].key, self.contents.digest(stage.outputs)))

    def _note(self, stage: WorkflowStage, noted: Noted) -> None:
        self._stages[stage.name] = noted
        write_json(self.folder / "contents.json", self.contents.known)
        write_json(self.folder / "stages.json", {name: asdict(each) for name, each in self._stages.items()})


def _read(path: Path) -> dict[str, Any]:
    """Read what an earlier time has left; what cannot be understood counts as never written."""
    try:
        tree = read_json_tree(path)
    except (OSError, ValueError):
        return {}
    return tree if isinstance(tree, dict) else {}
