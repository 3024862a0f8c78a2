"""Several samples as tensors, with the counts that their losses are divided by."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from outsize.data.sample import Sample


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
    totals: Mapping[str, float]

    def to(self, device: torch.device) -> Batch:
        """Copy the tensors to a device."""
        return replace(
            self,
            images=self.images.to(device, non_blocking=True),
            valid=self.valid.to(device, non_blocking=True),
            labels=self.labels.to(device, non_blocking=True),
        )

    def pin_memory(self) -> Batch:
        """Copy the tensors to page-locked memory, from where a copy to a GPU does not make the host wait."""
        return replace(
            self,
            images=self.images.pin_memory(),
            valid=self.valid.pin_memory(),
            labels=self.labels.pin_memory(),
        )

    def part(self, samples: slice) -> Batch:
        """Return some of the samples under the totals of the whole."""
        return replace(
            self, images=self.images[samples], valid=self.valid[samples], labels=self.labels[samples]
        )


def collate(samples: Sequence[Sample], count_terms: Callable[[Tensor], Mapping[str, float]]) -> Batch:
    """Stack samples; `count_terms` turns labels into the totals of the step."""
    labels = torch.from_numpy(np.stack([sample.labels for sample in samples]))
    return Batch(
        images=torch.from_numpy(np.stack([sample.image for sample in samples])),
        valid=torch.from_numpy(np.stack([sample.valid for sample in samples])),
        labels=labels,
        totals=count_terms(labels),
    )
