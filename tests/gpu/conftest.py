"""Tests that need one GPU; skipped where there is none."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator

import pytest
import torch

os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")  # as the command line has it


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not torch.cuda.is_available():
        for item in items:
            if "tests/gpu" in item.path.as_posix():
                item.add_marker(pytest.mark.skip(reason="needs a GPU"))


@pytest.fixture(autouse=True)
def nothing_left_over() -> Iterator[None]:
    """Give the next test the whole GPU: a cap that a test sets, and what it holds when it fails, is the process's."""
    yield
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.set_per_process_memory_fraction(1.0)
