"""Tiny jobs: how the text of most of them ends, and a training of one."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import load_file

from outsize.commands.train import train
from outsize.progress import Reporter
from outsize.runs import RunFolder

_TINY = """
[model]
levels = 2
width = 4
[limits]
host_memory = "1GiB"
tile_px = 32
[train]
epochs = 1
tile_px = 32
batch = 2
"""


def job_tail(**values: int) -> str:
    """Return classes with their values, and the smallest of trainings; what is added belongs to [train]."""
    classes = (f'[[data.classes]]\nname = "{name}"\nvalue = {value}' for name, value in values.items())
    return "\n".join(classes) + _TINY


def trained(job_path: Path, name: str, *overrides: str) -> tuple[dict[str, torch.Tensor], dict[str, object]]:
    """Train a job into a run beside it; return its weights and its plan."""
    run = RunFolder(job_path.parent / name)
    every = ["train.tile_px=96", f"run={run.path.as_posix()}", "limits.tile_px=16", *overrides]
    train(job_path, overrides=every, device_name="cpu", mode="new", reporter=Reporter("quiet"))
    return load_file(run.last), json.loads(run.plan.read_text())["train"]
