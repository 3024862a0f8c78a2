"""Batches come in order, from any step on, the same from threads and processes."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextlib import closing
from itertools import chain
from pathlib import Path
from threading import Event

import numpy as np
import pytest
import torch
from PIL import Image

from outsize.data.sample import Sample, Targets
from outsize.data.sampling.draw import SampleCounts
from outsize.data.sampling.windows import TrainingWindows
from outsize.data.scenes import LabelledScene, label_table
from outsize.data.statistics import BandStatistics
from outsize.data.targets import ClassRaster
from outsize.losses import Weights
from outsize.raster.reading import describe
from outsize.train.feed import BatchMaker, Feed


class _Windows:
    """Stands in for TrainingWindows: a sample says which one it is."""

    def sample(self, epoch: int, index: int) -> Sample:
        image = np.full((1, 2, 2), 100 * epoch + index, np.float32)
        labels = np.array([[0, 1], [1, 255]], np.uint8)
        return Sample(image, np.ones((2, 2), bool), ClassRaster(labels))

    def share_memory(self, num_processes: int, limit_bytes: int) -> None:
        pass


def _count(_: str, targets: Targets, __: Weights) -> dict[str, float]:
    return {"loss": float(sum((each != 255).sum() for each in targets.tensors()))}


def _feed(
    seen: SampleCounts, windows: object = None, *, in_processes: bool = False, decoded_bytes: int = 0
) -> Feed:
    maker = BatchMaker(windows or _Windows(), _count, "", None, len(seen.names), 2)  # type: ignore[arg-type]
    cpu = torch.device("cpu")
    workers = {"num_workers": 2, "in_processes": in_processes, "decoded_bytes": decoded_bytes}
    return Feed(maker, seen, num_epochs=4, steps_per_epoch=3, device=cpu, **workers)  # type: ignore[arg-type]


@pytest.mark.parametrize("in_processes", [False, True])
def test_batches_are_in_order_and_counted(in_processes: bool) -> None:
    seen = SampleCounts(["a", "b"])
    with closing(_feed(seen, in_processes=in_processes)) as feed:
        batches = list(feed.batches(1, 0))
    assert [batch.images[:, 0, 0, 0].tolist() for batch in batches] == [[100, 101], [102, 103], [104, 105]]
    assert batches[0].totals == {"loss": 6.0}
    shares = seen.as_dict()["class_shares"]
    assert [round(share, 3) for share in shares.values()] == [0.333, 0.667]


@pytest.mark.parametrize("in_processes", [False, True])
def test_a_resumed_epoch_yields_the_rest_and_has_seen_the_whole(in_processes: bool) -> None:
    seen, whole = SampleCounts(["a", "b"]), SampleCounts(["a", "b"])
    with closing(_feed(seen, in_processes=in_processes)) as feed:
        rest = list(feed.batches(0, 2))
    with closing(_feed(whole)) as feed:
        list(feed.batches(0, 0))
    assert [batch.images[0, 0, 0, 0].item() for batch in rest] == [4]
    assert seen.as_dict() == whole.as_dict()


@pytest.mark.parametrize("in_processes", [False, True])
def test_what_was_seen_before_a_step_is_taken_up_and_not_made_again(in_processes: bool) -> None:
    seen, again, whole = SampleCounts(["a", "b"]), SampleCounts(["a", "b"]), SampleCounts(["a", "b"])
    with closing(_feed(seen)) as feed:
        begun = feed.batches(1, 0)
        next(begun), next(begun)
        counts = json.loads(json.dumps(seen.counts()))
    windows = _Noting()
    with closing(_feed(again, windows, in_processes=in_processes)) as feed:
        feed.take_up(1, 2, counts)
        assert [batch.images[0, 0, 0, 0].item() for batch in feed.batches(1, 2)] == [104]
        with closing(_feed(whole)) as other:
            list(other.batches(1, 0))
        assert again.as_dict() == whole.as_dict()
        assert [batch.images[0, 0, 0, 0].item() for batch in feed.batches(2, 0)] == [200, 202, 204]
    assert not {(1, index) for index in range(4)} & windows.samples


def test_counts_of_a_finished_epoch_are_not_those_of_the_next() -> None:
    seen, whole = SampleCounts(["a", "b"]), SampleCounts(["a", "b"])
    with closing(_feed(whole)) as feed:
        list(feed.batches(1, 0))
    with closing(_feed(seen)) as feed:
        feed.take_up(1, 0, whole.counts())
        list(feed.batches(1, 0))
    assert seen.as_dict() == whole.as_dict()


def test_steps_that_would_not_fit_in_memory_are_not_listed() -> None:
    maker = BatchMaker(_Windows(), _count, "", None, 2, 2)  # type: ignore[arg-type]
    size = {"num_epochs": 10**6, "steps_per_epoch": 10**6, "num_workers": 1}
    cpu = torch.device("cpu")
    with closing(Feed(maker, SampleCounts(["a", "b"]), in_processes=False, device=cpu, **size)) as feed:  # type: ignore[arg-type]
        feed.take_up(3, 999_990, SampleCounts(["a", "b"]).counts())
        assert len(list(feed.batches(3, 999_990))) == 10


class _Noting(_Windows):
    def __init__(self) -> None:
        self.epochs: set[int] = set()
        self.samples: set[tuple[int, int]] = set()

    def sample(self, epoch: int, index: int) -> Sample:
        self.epochs.add(epoch)
        self.samples.add((epoch, index))
        return super().sample(epoch, index)


def test_batches_of_the_next_epoch_are_made_before_they_are_asked_for() -> None:
    is_begun = Event()

    class Telling(_Noting):
        def sample(self, epoch: int, index: int) -> Sample:
            made = super().sample(epoch, index)
            if epoch == 3:
                is_begun.set()
            return made

    windows = Telling()
    with closing(_feed(SampleCounts(["a", "b"]), windows)) as feed:
        list(feed.batches(2, 0))
        assert is_begun.wait(timeout=300)
        assert windows.epochs == {2, 3}
        assert [batch.images[0, 0, 0, 0].item() for batch in feed.batches(3, 0)] == [300, 302, 304]
        assert [batch.images[0, 0, 0, 0].item() for batch in feed.batches(1, 1)] == [
            102,
            104,
        ]  # any other, too


@pytest.mark.parametrize("in_processes", [False, True])
def test_an_epoch_that_is_left_early_does_not_run_into_the_next(in_processes: bool) -> None:
    with closing(_feed(SampleCounts(["a", "b"]), in_processes=in_processes)) as feed:
        next(feed.batches(0, 0))
        assert [batch.images[0, 0, 0, 0].item() for batch in feed.batches(1, 0)] == [100, 102, 104]


def test_switching_is_restored_also_when_closed_early() -> None:
    before = sys.getswitchinterval()
    feed = _feed(SampleCounts(["a", "b"]))
    next(feed.batches(0, 0))
    assert sys.getswitchinterval() < before
    feed.close()
    assert sys.getswitchinterval() == before


def test_processes_draw_the_samples_that_threads_draw(write_raster: Callable[..., Path]) -> None:
    rng = np.random.default_rng(0)
    scene = write_raster("a.tif", rng.integers(1, 4000, (4, 300, 320)).astype(np.uint16), compress="deflate")
    labels = write_raster("a_labels.tif", rng.integers(0, 3, (1, 300, 320)).astype(np.uint8))
    windows = TrainingWindows(
        [LabelledScene(describe(scene), describe(labels))],
        label_table([0, 1, 2], 255),
        tile_px=64,
        augmentations=("flip", "turn", "scale", "noise"),
        statistics=BandStatistics((2000.0,) * 4, (1000.0,) * 4),
        seed=5,
    )
    names = ["a", "b", "c"]
    with closing(_feed(SampleCounts(names), windows)) as feed:
        wanted = [list(feed.batches(epoch, 0)) for epoch in range(2)]
    # files are open here by now, and GDAL's threads at work
    with closing(_feed(SampleCounts(names), windows, in_processes=True)) as feed:
        found = [list(feed.batches(epoch, 0)) for epoch in range(2)]
    windows.close()
    for one, other in zip(chain(*wanted), chain(*found), strict=True):
        assert torch.equal(one.images, other.images)
        assert torch.equal(one.targets.labels, other.targets.labels)
        assert torch.equal(one.valid, other.valid)
        assert one.totals == other.totals


def test_pictures_that_processes_share_give_the_samples_of_threads(tmp_path: Path) -> None:
    """Windows that are no squares, pictures decoded once for all processes, and some for which there is no room."""
    rng = np.random.default_rng(0)
    scenes = []
    for number in range(4):
        image, labels = tmp_path / f"{number}.jpg", tmp_path / f"{number}.png"
        Image.fromarray(rng.integers(0, 256, (60, 90, 3), dtype=np.uint8)).save(image)
        Image.fromarray(rng.integers(0, 3, (60, 90), dtype=np.uint8)).save(labels)
        scenes.append(LabelledScene(describe(image), describe(labels)))
    windows = TrainingWindows(
        scenes,
        label_table([0, 1, 2], 255),
        tile_px=(32, 80),
        augmentations=("scale", "flip", "turn", "jitter", "blur"),
        statistics=BandStatistics((100.0,) * 3, (50.0,) * 3),
        seed=5,
    )
    assert windows.sample_bytes == 32 * 80 * 5
    names = ["a", "b", "c"]
    with closing(_feed(SampleCounts(names), windows)) as feed:
        wanted = list(feed.batches(0, 0))
    with closing(
        _feed(SampleCounts(names), windows, in_processes=True, decoded_bytes=3 * 60 * 90 * 4)
    ) as feed:
        found = list(feed.batches(0, 0))
        assert feed.copied_s() == 0.0
    windows.close()
    assert wanted[0].images.shape == (2, 3, 32, 80)
    assert wanted[0].images.dtype == torch.uint8
    for one, other in zip(wanted, found, strict=True):
        assert torch.equal(one.images, other.images)
        assert torch.equal(one.targets.labels, other.targets.labels)
        assert torch.equal(one.valid, other.valid)


def test_the_key_of_a_sample_is_of_seed_epoch_and_number_alone() -> None:
    windows: object = _Windows()
    one, other, seeded = (
        BatchMaker(windows, _count, "", None, 2, size, seed=seed)  # type: ignore[arg-type]
        for size, seed in ((4, 1), (2, 1), (2, 2))
    )
    keys = [*other((3, 0))[0].keys, *other((3, 1))[0].keys]
    assert list(one((3, 0))[0].keys) == keys
    assert len({*keys, *seeded((3, 0))[0].keys, *other((4, 0))[0].keys}) == 8
