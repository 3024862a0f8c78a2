"""Several samples as tensors, with the counts that their losses are divided by."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from outsize.data.sample import Sample, Targets
from outsize.tiles.window import Window

MakeMaps = Callable[[Tensor, Tensor, Targets], dict[str, Tensor]]  # images, valid, targets -> maps by name


@dataclass(frozen=True)
class Batch:
    """Several samples as tensors.

    `totals` holds, for each loss term, the count its sum is divided by, over the whole optimizer step and
    fixed before it starts. A loss is then a sum over a known count, so parts of a batch (on other ranks, in
    micro-batches, in tiles) add up to the whole: a mean of means would not.
    """

    images: Tensor  # sample, band, row, column; raw values
    valid: Tensor  # sample, row, column
    targets: Targets
    totals: Mapping[str, float | Tensor]  # tensors where a step is recorded
    maps: Mapping[str, Tensor] = field(default_factory=dict)  # made of these: sample, row, column; bytes
    keys: tuple[int, ...] = ()  # of each sample: what is drawn for it depends on this alone; (): 0 for all

    def to(self, device: torch.device) -> Batch:
        """Copy the tensors to a device."""
        return self.each(lambda tensor: tensor.to(device, non_blocking=True))

    def pin_memory(self) -> Batch:
        """Copy the tensors to page-locked memory, from where a copy to a GPU does not make the host wait."""
        return self.each(Tensor.pin_memory)

    def part(self, samples: slice) -> Batch:
        """Return some of the samples under the totals of the whole."""
        return replace(
            self._changed(lambda tensor: tensor[samples], self.targets.part(samples)), keys=self.keys[samples]
        )

    def crop(self, read: Window, core: Window) -> Batch:
        """Cut a window out of every sample, of which only the core is learnt from, under the totals of the whole.

        Where it passes the end of the picture it is filled up with 0, which is not valid: the network sees 0.
        """
        return self._changed(partial(_window, window=read), self.targets.crop(read, core))

    def tensors(self) -> Iterator[Tensor]:
        """Yield every tensor."""
        yield from (self.images, self.valid, *self.targets.tensors(), *self.maps.values())

    def each(self, change: Callable[[Tensor], Tensor]) -> Batch:
        """Change every tensor in the same way."""
        return self._changed(change, self.targets.each(change))

    def _changed(self, change: Callable[[Tensor], Tensor], targets: Targets) -> Batch:
        return replace(
            self,
            images=change(self.images),
            valid=change(self.valid),
            targets=targets,
            maps={name: change(each) for name, each in self.maps.items()},
        )


def collate(
    samples: Sequence[Sample],
    count_terms: Callable[[Targets, Mapping[str, Tensor]], Mapping[str, float]],
    make_maps: MakeMaps | None = None,
    keys: Sequence[int] = (),
) -> Batch:
    """Stack samples; `count_terms` turns targets and maps into the totals of the step."""
    images = torch.from_numpy(np.stack([each.image for each in samples]))
    valid = torch.from_numpy(np.stack([each.valid for each in samples]))
    targets = samples[0].target.stack([each.target for each in samples])
    maps = {} if make_maps is None else make_maps(images, valid, targets)
    return Batch(images, valid, targets, count_terms(targets, maps), maps, tuple(keys))


def _window(pixels: Tensor, window: Window) -> Tensor:
    inside = pixels[..., *window.slices]
    missing = (0, window.width - inside.shape[-1], 0, window.height - inside.shape[-2])
    return functional.pad(inside, missing) if any(missing) else inside


def reduced(labels: Tensor, stride: int) -> Tensor:
    """Take every `stride`-th label a side, from the middle of each square of them, as the nearest one is."""
    return labels if stride == 1 else labels[..., stride // 2 :: stride, stride // 2 :: stride]
