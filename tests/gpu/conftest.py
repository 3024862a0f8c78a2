"""Tests that need one GPU; skipped where there is none."""

from __future__ import annotations

import os

import pytest
import torch

os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")  # as the command line has it


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not torch.cuda.is_available():
        for item in items:
            if "tests/gpu" in item.path.as_posix():
                item.add_marker(pytest.mark.skip(reason="needs a GPU"))
