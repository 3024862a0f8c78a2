"""Several samples as tensors, with the counts that their losses are divided by."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from outsize.data.objects.object import Object
from outsize.data.sample import Sample

MakeMaps = Callable[[Tensor, Tensor, Tensor], dict[str, Tensor]]  # images, valid, labels -> maps by name


@dataclass(frozen=True)
class Batch:
    """Several samples as tensors.

    `totals` holds, for each loss term, the count its sum is divided by, over the whole optimizer step and
    fixed before it starts. A loss is then a sum over a known count, so parts of a batch (on other ranks, in
    micro-batches, in tiles) add up to the whole: a mean of means would not.
    """

    images: Tensor  # sample, band, row, column; raw values
    valid: Tensor  # sample, row, column
    labels: Tensor  # sample, row, column; uint8
    totals: Mapping[str, float | Tensor]  # tensors where a step is recorded
    maps: Mapping[str, Tensor] = field(default_factory=dict)  # made of these: sample, row, column; bytes
    objects: tuple[tuple[Object, ...], ...] = ()  # of each sample; (): the task knows none
    keys: tuple[int, ...] = ()  # of each sample: what is drawn for it depends on this alone; (): 0 for all

    def to(self, device: torch.device) -> Batch:
        """Copy the tensors to a device."""
        return self.each(lambda tensor: tensor.to(device, non_blocking=True))

    def pin_memory(self) -> Batch:
        """Copy the tensors to page-locked memory, from where a copy to a GPU does not make the host wait."""
        return self.each(Tensor.pin_memory)

    def part(self, samples: slice) -> Batch:
        """Return some of the samples under the totals of the whole."""
        some = self.each(lambda tensor: tensor[samples])
        return replace(some, objects=self.objects[samples], keys=self.keys[samples])

    def each(self, change: Callable[[Tensor], Tensor]) -> Batch:
        """Change every tensor in the same way."""
        return replace(
            self,
            images=change(self.images),
            valid=change(self.valid),
            labels=change(self.labels),
            maps={name: change(each) for name, each in self.maps.items()},
        )


def collate(
    samples: Sequence[Sample],
    count_terms: Callable[[Tensor, Mapping[str, Tensor]], Mapping[str, float]],
    make_maps: MakeMaps | None = None,
    keys: Sequence[int] = (),
) -> Batch:
    """Stack samples; `count_terms` turns labels and maps into the totals of the step."""
    images, valid, labels = (
        torch.from_numpy(np.stack(arrays))
        for arrays in zip(*((each.image, each.valid, each.labels) for each in samples), strict=True)
    )
    maps = {} if make_maps is None else make_maps(images, valid, labels)
    objects = tuple(each.objects for each in samples)
    return Batch(images, valid, labels, count_terms(labels, maps), maps, objects, tuple(keys))


def reduced(labels: Tensor, stride: int) -> Tensor:
    """Take every `stride`-th label a side, from the middle of each square of them, as the nearest one is."""
    return labels if stride == 1 else labels[..., stride // 2 :: stride, stride // 2 :: stride]
