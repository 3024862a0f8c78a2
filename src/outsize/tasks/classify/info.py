"""What classification of pictures is called and judged by."""

from __future__ import annotations

from outsize.tasks.info import TaskInfo

_FIRST_SECTIONS = """\
[model]
name = "digits"
width = 8
picture_px = 28

[train]
epochs = 3
tile_px = 28        # that pictures are brought to
batch = 64
lr = 1e-2
warmup_steps = 200
augment = []        # or ["flip"], where a mirrored picture is of the same class
"""

INFO = TaskInfo(
    labels="pictures",
    score="accuracy",
    score_name="accuracy",
    in_scores=("accuracy",),
    first_sections=_FIRST_SECTIONS,
    comparison="compare.json",
    joined="pictures have one class as a whole",
)
