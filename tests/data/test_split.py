"""Who is trained on and who is tested on: seeded, written down, and never both."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from outsize.data.scenes import LabelledScene, open_scenes
from outsize.data.split import (
    BadFile,
    Splits,
    check_split,
    find_duplicates,
    share_blocks,
    share_out,
    write_split,
)
from outsize.errors import DataError, JobError
from outsize.job import SplitSection
from outsize.tiles.window import Window

WriteRaster = Callable[..., Path]
PATHS = [Path(f"/data/tile{tile}/images/{number}.jpg") for tile in range(1, 7) for number in range(9)]


def test_scenes_are_shared_out_by_seed_and_not_by_order() -> None:
    section = SplitSection(val=0.2, test=0.1)
    shared = share_out(PATHS, section, seed=3)
    assert [len(shared[split]) for split in ("train", "val", "test")] == [38, 11, 5]
    assert sorted(path for held in shared.values() for path in held) == sorted(PATHS)
    again = share_out(PATHS[::-1], section, seed=3)
    assert {split: set(held) for split, held in again.items()} == {s: set(h) for s, h in shared.items()}
    assert share_out(PATHS, section, seed=4) != shared


def test_folders_stay_together() -> None:
    shared = share_out(PATHS, SplitSection(by="folder"), seed=1)
    folders = {split: {path.parts[2] for path in held} for split, held in shared.items()}
    assert [len(folders[split]) for split in ("train", "val", "test")] == [4, 1, 1]
    assert len(set.union(*folders.values())) == 6


def test_named_folders_are_held_back() -> None:
    section = SplitSection(by="folder", test_folders=("tile6",), val_folders=("tile2/images",))
    shared = share_out(PATHS, section, seed=1)
    assert {path.parts[2] for path in shared["test"]} == {"tile6"}
    assert {path.parts[2] for path in shared["val"]} == {"tile2"}
    assert len(shared["train"]) == 36


def test_an_unknown_folder_names_the_nearest() -> None:
    with pytest.raises(JobError, match=r"found 'tile66', needed one of .*; did you mean 'tile6'"):
        share_out(PATHS, SplitSection(by="folder", test_folders=("tile66",)), seed=1)


@pytest.mark.parametrize("num", [1, 2])
def test_too_few_images_leave_nothing_to_train_on(num: int) -> None:
    with pytest.raises(JobError, match=r"nothing to train on: .*blocks"):
        share_out(PATHS[:num], SplitSection(), seed=1)


def test_no_share_no_images() -> None:
    shared = share_out(PATHS[:1], SplitSection(val=0, test=0), seed=1)
    assert (shared["train"], shared["val"], shared["test"]) == ((PATHS[0],), (), ())


@pytest.fixture
def scenes(write_raster: WriteRaster, tmp_path: Path) -> tuple[LabelledScene, ...]:
    for number, name in enumerate(("a", "b")):
        write_raster(f"{name}.tif", np.full((1, 200, 330), number, np.uint8))
        write_raster(f"{name}_labels.tif", np.zeros((200, 330), np.uint8))
    return open_scenes([f"{tmp_path}/*.tif"], "{stem}_labels.tif")


def test_blocks_of_all_scenes_are_shared_out(scenes: tuple[LabelledScene, ...]) -> None:
    section = SplitSection(by="blocks", block_px=64, val=0.2, test=0.2)
    shared = share_blocks(scenes, section, seed=2, gap_px=16)
    splits = Splits(**shared)
    check_split(splits, 16)
    with pytest.raises(DataError, match=r"leaks: found areas of .* 1[67] px apart, needed at least 40 px"):
        check_split(splits, 40)
    assert share_blocks(scenes, section, seed=2, gap_px=16) == shared
    assert share_blocks(scenes, section, seed=5, gap_px=16) != shared
    kept = sum(area.num_px for held in shared.values() for scene in held for area in scene.areas)
    assert 0.4 < kept / (2 * 200 * 330) < 0.95


def test_a_gap_that_eats_all_is_refused(scenes: tuple[LabelledScene, ...]) -> None:
    section = SplitSection(by="blocks", block_px=64, val=0, test=0.01)
    with pytest.raises(JobError, match="nothing to test: found 30 blocks of 64 px, 130 px apart"):
        share_blocks(scenes, section, seed=2, gap_px=130)


def test_leaks_are_refused(scenes: tuple[LabelledScene, ...], tmp_path: Path) -> None:
    one, other = scenes
    check_split(Splits((one,), (), (other,)), 10)
    with pytest.raises(DataError, match=r"a\.tif leaks: found it is in train and test"):
        check_split(Splits((one,), (), (one,)), 0)
    left, right = (replace(one, areas=(Window(0, col, 200, 100),)) for col in (0, 105))
    check_split(Splits((left,), (right,), ()), 5)
    with pytest.raises(DataError, match=r"areas of train and val 5 px apart, needed at least 6 px"):
        check_split(Splits((left,), (right,), ()), 6)
    overlapping = replace(one, areas=(Window(0, 90, 200, 100),))
    with pytest.raises(DataError, match=r"-10 px apart"):
        check_split(Splits((left,), (), (overlapping,)), 0)


def test_a_copy_under_another_name_leaks(scenes: tuple[LabelledScene, ...], tmp_path: Path) -> None:
    copy = tmp_path / "copy.tif"
    copy.write_bytes((tmp_path / "a.tif").read_bytes())
    twin = replace(scenes[0], image=replace(scenes[0].image, path=copy))
    with pytest.raises(DataError, match=r"leaks: found its copy .*, needed no copy across test, train"):
        check_split(Splits((scenes[0],), (), (twin,)), 0)
    assert find_duplicates([copy, tmp_path / "b.tif", tmp_path / "a.tif"]) == [[copy, tmp_path / "a.tif"]]


def test_the_split_is_written_down(scenes: tuple[LabelledScene, ...], tmp_path: Path) -> None:
    part = replace(scenes[0], areas=(Window(1, 2, 3, 4),))
    write_split(tmp_path / "split.json", Splits((part,), (), (scenes[1],), (BadFile(Path("x"), "torn"),)))
    tree = json.loads((tmp_path / "split.json").read_text())
    assert tree["train"][0]["areas"] == [[1, 2, 3, 4]]
    assert tree["test"][0]["image"].endswith("b.tif")
    assert tree["set_aside"] == [{"file": "x", "reason": "torn"}]
