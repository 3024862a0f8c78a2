"""The time of copies to a GPU, read without waiting for it."""

from __future__ import annotations

import torch

from outsize.data.batch import Batch
from outsize.data.targets import ClassRasters
from outsize.train.copies import Copies

DEVICE = torch.device("cuda")


def test_copies_are_timed_once_they_are_over_and_nobody_waits() -> None:
    images = torch.zeros(8, 3, 512, 1024, dtype=torch.uint8)
    flat = torch.zeros(8, 512, 1024, dtype=torch.uint8)
    batch = Batch(images, flat > 0, ClassRasters(flat), {}).pin_memory()
    copies = Copies(DEVICE)
    copies.copy(batch)
    torch.cuda.synchronize()
    assert 1e-4 < copies.seconds() < 0.1  # 21 MB
    assert copies.seconds() == 0.0
    busy = torch.randn(8192, 8192, device=DEVICE)
    torch.cuda.synchronize()
    for _ in range(20):
        busy = busy @ busy
    kernels = torch.cuda.current_stream().record_event()
    copies.copy(batch)
    assert copies.seconds() == 0.0  # behind kernels that are not over
    assert not kernels.query()  # nobody waited for them
    torch.cuda.synchronize()
    assert 1e-4 < copies.seconds() < 0.1  # of the copy, not of the kernels before it
