"""What forecasting is called and judged by."""

from __future__ import annotations

from outsize.tasks.info import TaskInfo

_FIRST_SECTIONS = """\
[model]
name = "unet"        # or "convlstm", with num_in = 10 instead of levels
levels = 4
width = 16
zero_head = true        # begins as the optical flow that it corrects

[train]
loss = "rain"
epochs = 20
tile_px = 256
batch = 4
lr = 1e-3
rare_share = 0.7        # of windows drawn where it will rain
augment = ["flip", "turn"]
"""

INFO = TaskInfo(
    labels="frames",
    score="mean_csi",
    score_name="mean CSI at 1 mm/h",
    in_scores=("mean_csi",),
    first_sections=_FIRST_SECTIONS,
    comparison="compare.json",
)
