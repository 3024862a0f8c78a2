"""What segmentation is called and judged by."""

from __future__ import annotations

from outsize.tasks.info import TaskInfo

_FIRST_SECTIONS = """\
[model]
name = "unet"        # or e.g. "smp:Unet/resnet18"
levels = 4
width = 32

[train]
epochs = 20
tile_px = 256
batch = 8
lr = 1e-3
# class_weights = "median"        # where some classes are rare
# rare_share = 0.5
"""

INFO = TaskInfo(
    labels="classes",
    score="mean_iou",
    score_name="mean IoU",
    in_scores=("mean_iou",),
    first_sections=_FIRST_SECTIONS,
    comparison="compare.json",
)
