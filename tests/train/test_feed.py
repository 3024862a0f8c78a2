"""Batches come in order, from any step on, and the interpreter's switching is as before afterwards."""

from __future__ import annotations

import sys

import numpy as np
import torch

from outsize.data.sample import Sample
from outsize.data.sampling import Seen
from outsize.train.feed import Feed


class _Windows:
    """Stands in for TrainingWindows: a sample says which one it is."""

    def sample(self, epoch: int, index: int) -> Sample:
        image = np.full((1, 2, 2), 100 * epoch + index, np.float32)
        labels = np.array([[0, 1], [1, 255]], np.uint8)
        return Sample(image, np.ones((2, 2), bool), labels)


def _feed(seen: Seen) -> Feed:
    return Feed(
        _Windows(),  # type: ignore[arg-type]
        lambda labels: {"loss": float((labels != 255).sum())},
        seen,
        steps_per_epoch=3,
        batch=2,
        num_threads=2,
        device=torch.device("cpu"),
    )


def test_batches_are_in_order_and_counted() -> None:
    seen = Seen(["a", "b"])
    batches = list(_feed(seen).batches(1, 0))
    assert [batch.images[:, 0, 0, 0].tolist() for batch in batches] == [[100, 101], [102, 103], [104, 105]]
    assert batches[0].totals == {"loss": 6.0}
    shares = seen.as_dict()["class_shares"]
    assert [round(share, 3) for share in shares.values()] == [0.333, 0.667]


def test_a_resumed_epoch_yields_the_rest_and_has_seen_the_whole() -> None:
    seen, whole = Seen(["a", "b"]), Seen(["a", "b"])
    rest = list(_feed(seen).batches(0, 2))
    list(_feed(whole).batches(0, 0))
    assert [batch.images[0, 0, 0, 0].item() for batch in rest] == [4]
    assert seen.as_dict() == whole.as_dict()


def test_switching_is_restored_also_when_closed_early() -> None:
    before = sys.getswitchinterval()
    batches = _feed(Seen(["a", "b"])).batches(0, 0)
    next(batches)
    assert sys.getswitchinterval() < before
    batches.close()  # type: ignore[attr-defined]
    assert sys.getswitchinterval() == before
