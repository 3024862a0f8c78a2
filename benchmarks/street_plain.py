"""The plain script that `street_speed.py` compares with: eager, plane after plane, torch's default precision."""

from __future__ import annotations

import time
from collections.abc import Iterator
from multiprocessing import active_children
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from torchvision import tv_tensors
from torchvision.transforms import v2

from outsize.train.waits import BatchWaits

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
IGNORED = 255
_MANY = 1_000_000  # samples of an epoch, which has no end here: its end would cost a script some waiting


class Pictures(Dataset[tuple[Tensor, Tensor]]):
    """Pictures and classes, changed by chance: scale 1/2 to 2, crop, flip, colours, blur."""

    def __init__(
        self,
        pairs: list[tuple[Path, Path]],
        picture_px: tuple[int, int],
        window_px: tuple[int, int],
        ignored: int,
    ) -> None:
        self._pairs, self._ignored = pairs, ignored
        short_px = min(picture_px)
        nothing = {tv_tensors.Image: 0, tv_tensors.Mask: IGNORED}
        self._change = v2.Compose(
            [
                v2.RandomResize(short_px // 2, short_px * 2, antialias=False),
                v2.RandomCrop(window_px, pad_if_needed=True, fill=nothing),
                v2.RandomHorizontalFlip(),
                v2.ColorJitter(0.25, 0.25, 0.25, 0.25),
                v2.GaussianBlur(9, (0.15, 1.3)),
                v2.ToDtype({tv_tensors.Image: torch.float32, "others": None}, scale=True),
                v2.Normalize(MEAN, STD),
            ]
        )

    def __len__(self) -> int:
        return _MANY

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        image, labels = self._pairs[index % len(self._pairs)]
        with Image.open(image) as opened:
            picture = tv_tensors.Image(opened.convert("RGB"))
        with Image.open(labels) as opened:
            classes = np.array(opened)
        classes[classes == self._ignored] = IGNORED
        changed, mask = self._change(picture, tv_tensors.Mask(torch.from_numpy(classes)))
        return changed.as_subclass(torch.Tensor), mask.as_subclass(torch.Tensor).long()


class PlainScript:
    """A model, an optimizer and a loader, as a script has them."""

    def __init__(
        self, model: nn.Module, lr: float, pictures: Pictures, batch: int, workers: int, device: str
    ) -> None:
        self.device = torch.device(device)
        # the workers begin as copies of this process: before it has to do with the GPU
        loader = DataLoader(
            pictures,
            batch_size=batch,
            shuffle=True,
            drop_last=True,
            num_workers=workers,
            pin_memory=self.device.type == "cuda",
        )
        before = active_children()
        self._batches: Iterator[list[Tensor]] = iter(loader)
        self.workers = [each for each in active_children() if each not in before]
        self._model, self._lr = model, lr

    def begin(self) -> None:
        """Bring the model to the device."""
        self._model.to(self.device).train()
        self._optimizer = torch.optim.AdamW(self._model.parameters(), lr=self._lr, weight_decay=1e-4)

    def step(self, images: Tensor, labels: Tensor) -> Tensor:
        """Train on one batch that is on the device."""
        self._optimizer.zero_grad()
        loss = F.cross_entropy(self._model(images), labels, ignore_index=IGNORED)
        loss.backward()
        self._optimizer.step()
        return loss.detach()

    def turn(self, num_steps: int) -> list[tuple[float, float]]:
        """Train so many steps from files; returns the seconds each waited for data, and took."""
        times, waits = [], BatchWaits()  # as in the package's loop: a GPU that has work has not waited
        ended_s = time.perf_counter()
        for number in range(num_steps):
            waits.begin()
            images, labels = next(self._batches)
            waits.end(self.device)
            loss = self.step(
                images.to(self.device, non_blocking=True), labels.to(self.device, non_blocking=True)
            )
            waits.mark_work()
            began_s, ended_s = ended_s, time.perf_counter()
            times.append((waits.seconds(), ended_s - began_s))
            if (number + 1) % 10 == 0:
                loss.item()  # which a script prints
        return times

    def close(self) -> None:
        """End the workers."""
        del self._batches
