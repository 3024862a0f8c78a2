"""What the finding of objects is called and judged by."""

from __future__ import annotations

from outsize.tasks.info import TaskInfo

_FIRST_SECTIONS = """\
[model]
name = "maskrcnn"
backbone = "resnet50"        # or "resnet101"

[train]
epochs = 20
tile_px = 512
batch = 2
lr = 1e-3
"""

INFO = TaskInfo(
    labels="objects",
    score="mask_ap50",
    score_name="mask AP50",
    in_scores=("mask", "ap50"),
    first_sections=_FIRST_SECTIONS,
    comparison="compare_objects.json",
    joined="objects of overlapping tiles are joined",
)
