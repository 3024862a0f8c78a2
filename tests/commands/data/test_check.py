"""`outsize check`: a table or JSON lines, data.json and split.json, and a refusal that names the file."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import rasterio

from outsize.commands.data.check import blocks_halo_px
from outsize.commands.data.check import check as check_command
from outsize.job import load_job
from outsize.progress import Reporter

Run = Callable[..., object]


@pytest.fixture
def own_job(own_job: Path, own_scenes: Path) -> Path:
    """A job whose training labels hold every class."""
    with rasterio.open(own_scenes / "train-0_labels.tif", "r+") as file:
        labels = file.read(1)
        labels[:6, 0] = range(6)
        file.write(labels, 1)
    return own_job


def test_an_empty_class_is_refused_by_name(run: Run, job_path: Path) -> None:
    lava = '\n[[data.classes]]\nname = "lava"\nvalue = 9\n'
    job_path.write_text(job_path.read_text() + lava)
    run("check", job_path).refused("class 'lava' is empty", "train")


def test_good_data(run: Run, own_job: Path, tmp_path: Path) -> None:
    done = run("check", own_job)
    assert done.code == 0, done.err
    lines = [json.loads(line) for line in done.out.splitlines()]
    found = next(line for line in lines if line["event"] == "check")
    assert found["images"] == {"train": 1, "val": 1, "test": 1}
    tree = json.loads((tmp_path / "run" / "data.json").read_text())
    assert len(tree["statistics"]["mean"]) == 4
    assert sum(tree["class_px"]["train"]) <= 160 * 208
    assert len(tree["scenes"]) == 3
    split = json.loads((tmp_path / "run" / "split.json").read_text())
    assert split["test"][0]["image"].endswith("test-2.tif")


def test_a_person_gets_a_table(own_job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    check_command(own_job, overrides=(), reporter=Reporter("bar"))
    shown = capsys.readouterr().out
    assert "train (1 image)" in shown
    assert "forest" in shown
    assert "nir" in shown


def test_missing_labels_are_refused(run: Run, own_job: Path, own_scenes: Path) -> None:
    (own_scenes / "train-0_labels.tif").unlink()
    done = run("check", own_job)
    done.refused("train-0.tif are missing", "train-0_labels.tif")


def test_the_gap_of_blocks_is_the_models_halo(own_job: Path, own_scenes: Path) -> None:
    assert blocks_halo_px(load_job(own_job), 4) == 0
    text = own_job.read_text()
    for split in ("train", "val", "test"):
        text = text.replace(f'{split} = ["', f'{"images" if split == "train" else "# " + split} = ["')
    own_job.write_text(text + '[data.split]\nby = "blocks"\nblock_px = 64\n')
    derived = blocks_halo_px(load_job(own_job), 4)
    assert derived > 8
    assert blocks_halo_px(load_job(own_job, ["data.split.gap_px=5"]), 4) == 0  # the job says so itself
    # a shorter halo for maps brings training and test blocks no nearer: `train` shares out by what the model sees
    assert blocks_halo_px(load_job(own_job, ["limits.halo_px=7"]), 4) == derived


def test_bands_that_the_scenes_lack_are_refused(run: Run, own_job: Path) -> None:
    bands = ("--set", 'data.bands=["blue", "green", "red"]')
    for verb in ("check", "plan"):
        refusal = run(verb, own_job, *bands).refused(
            "data.bands are not those of the images", "4 of train-0.tif"
        )
        assert "trained" not in refusal


def test_a_model_that_is_none_is_refused_without_torch(own_job: Path) -> None:
    code = (
        "import sys\nfrom pathlib import Path\nfrom outsize.commands.data.check import check\n"
        "from outsize.errors import ModelError\nfrom outsize.progress import Reporter\n"
        "try:\n    check(Path(sys.argv[1]), overrides=['model.name=unett'], reporter=Reporter())\n"
        "except ModelError as error:\n    print(error)\nprint('torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(own_job)], capture_output=True, text=True, check=True
    )
    refusal, has_torch = done.stdout.splitlines()
    assert "unknown model: found 'unett'" in refusal
    assert "did you mean 'unet'?" in refusal
    assert has_torch == "False"


def test_missing_labels_are_said_once(run: Run, own_job: Path, own_scenes: Path) -> None:
    (own_scenes / "train-0_labels.tif").unlink()
    done = run("check", own_job)
    assert (done.out + done.err).count(" are missing: found") == 1


def test_a_missing_scene_is_said_once(run: Run, own_job: Path) -> None:
    own_job.write_text(own_job.read_text().replace("/val-*.tif", "/val-7.tif"))
    done = run("check", own_job)
    done.refused("val-7.tif", "no such file")
    assert (done.out + done.err).count("val-7.tif") == done.err.count("val-7.tif")


def test_one_cause_is_said_once_for_all_files(run: Run, own_job: Path, own_scenes: Path) -> None:
    for name in ("train-0", "val-1", "test-2"):
        with rasterio.open(own_scenes / f"{name}_labels.tif", "r+") as file:
            labels = file.read(1)
            labels[len(name), 3] = 77
            file.write(labels, 1)
    done = run("check", own_job)
    refusal = done.refused("found 77 at row", "(the same in 2 more: val-1_labels.tif, test-2_labels.tif)")
    assert "outsize check" not in refusal
    said = [json.loads(line) for line in done.out.splitlines()]
    assert [line["text"] for line in said if line["event"] == "problem"] == []


def test_two_causes_are_said_once_each(run: Run, own_job: Path, own_scenes: Path) -> None:
    for name, value in (("train-0", 77), ("val-1", 78)):
        with rasterio.open(own_scenes / f"{name}_labels.tif", "r+") as file:
            labels = file.read(1)
            labels[5, 3] = value
            file.write(labels, 1)
    done = run("check", own_job)
    done.refused("found 77 at row", "(1 more problem, listed above)")
    (other,) = [line["text"] for line in map(json.loads, done.out.splitlines()) if line["event"] == "problem"]
    assert "found 78 at row" in other
    assert "found 78" not in done.err
    run("check", own_job, "--quiet").refused("(1 more problem, shown without --quiet)")


def test_a_folder_that_is_not_there_is_named_with_its_key(run: Run, own_job: Path, own_scenes: Path) -> None:
    text = own_job.read_text().replace(f"{own_scenes}/", "")
    own_job.write_text(text.replace("[data]", '[data]\nroot = "scenes"'))
    assert run("check", own_job).code == 0
    refusal = run("check", own_job, "--set", "data.root=scnes").refused(
        f"the folder {own_scenes.with_name('scnes')} is missing", "data.root", "did you mean 'scenes'"
    )
    assert "data.images" not in refusal
    run("check", own_job, "--set", "data.root=qqqqq").refused("no such folder", "; correct data.root")
    run("check", own_job, "--set", 'data.val=["deeper/val-*.tif"]').refused(
        "scenes/deeper is missing", "data.train, data.val or data.test"
    )
