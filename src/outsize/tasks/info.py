"""The words of a task that verbs print and write, known without loading what computes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TaskInfo:
    """What a task is called and judged by."""

    # what labels must tell: "classes" of pixels, "objects" one by one, "pictures": a class for each, or "frames"
    labels: str
    score: str  # of an epoch, the larger the better; as metrics.jsonl names it
    score_name: str
    in_scores: tuple[str, ...]  # where scores.json has the figure that tells most
    first_sections: str  # of a job to begin with: its model and its training
    comparison: str  # the file that a comparison of two runs leaves in the first
    joined: str = ""  # why tiles are not compared with the whole, where they need not equal it
