"""What the finding of boxes is called and judged by."""

from __future__ import annotations

from outsize.tasks.info import TaskInfo

_FIRST_SECTIONS = """\
[model]
name = "fastbox"
encoder = "vgg16_bn"         # or "resnet50"; or name = "torchvision:fcos_resnet50_fpn"

[train]
epochs = 60
tile_px = [384, 1248]
batch = 8
lr = 3e-4
augment = ["flip", "jitter"]
"""

INFO = TaskInfo(
    labels="boxes",
    score="box_ap",
    score_name="box AP",
    in_scores=("box", "ap"),
    first_sections=_FIRST_SECTIONS,
    comparison="compare_boxes.json",
    joined="boxes of overlapping tiles are settled",
)
