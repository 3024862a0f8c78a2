"""On a GPU: another process at work is seen, and one that only holds memory is not."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from outsize.measure.shared import is_shared

DEVICE = torch.device("cuda", 0)
_OTHER = """
import sys, torch
left = torch.randn(8192, 8192, device="cuda")
torch.mm(left, left)
torch.cuda.synchronize()
print("ready", flush=True)
while sys.argv[1] == "works":
    torch.mm(left, left)
sys.stdin.readline()
"""


@contextmanager
def _other(does: str) -> Iterator[None]:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", _OTHER, does], text=True, **pipes) as process:  # type: ignore[call-overload]
        try:
            assert process.stdout.readline().strip() == "ready"
            yield
        finally:
            process.kill()


def test_nobody_else_is_there() -> None:
    assert [is_shared(DEVICE) for _ in range(5)] == [False] * 5


@pytest.mark.parametrize(("does", "found"), [("works", True), ("waits", False)])
def test_another_process(does: str, found: bool) -> None:
    with _other(does):
        assert [is_shared(DEVICE) for _ in range(5)] == [found] * 5
