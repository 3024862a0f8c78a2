"""What a training says of the classes it learns from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from outsize.commands.train import train
from outsize.data.synthetic.scenes import draw_scene
from outsize.errors import DataError
from outsize.progress import Reporter


def _train(job_path: Path, *overrides: str) -> list[dict[str, object]]:
    run = train(job_path, overrides=overrides, device_name="cpu", mode="new", reporter=Reporter("quiet"))
    return [json.loads(line) for line in run.metrics.read_text().splitlines()]


def test_every_epoch_says_what_it_was_made_of(job_path: Path) -> None:
    lines = _train(job_path)
    assert [line["kind"] for line in lines] == ["epoch", "epoch"]
    for line in lines:
        mix = line["mix"]
        assert isinstance(mix, dict)
        assert sum(mix["class_shares"].values()) == pytest.approx(1.0)
        assert 0 <= mix["one_class_share"] <= 1
    assert lines[0]["mix"] != lines[1]["mix"]


def test_weights_mix_and_two_losses_in_one_training(job_path: Path, tmp_path: Path) -> None:
    every_class = draw_scene(tmp_path, "large", 512, 512, seed=0, vectors=False)
    names = ["scale", "flip", "turn", "noise"]
    lines = _train(
        job_path,
        f"data.train={json.dumps([str(every_class)])}",
        'train.loss="focal+dice"',
        'train.class_weights="log"',
        f"train.augment={json.dumps(names)}",
        "train.rare_share=0.5",
        "train.empty_share=0.2",
        "train.samples_per_epoch=20",
    )
    classes, *others = lines
    assert (classes["kind"], classes["step"]) == ("classes", 0)
    shares, weights = classes["class_shares"], classes["class_weights"]
    assert isinstance(shares, dict)
    assert isinstance(weights, dict)
    assert sum(shares.values()) == pytest.approx(1.0)
    by_share = sorted(shares, key=lambda name: shares[name])
    assert sorted(weights, key=lambda name: -weights[name]) == by_share
    (step, *_) = [line for line in others if line["kind"] == "step"]
    assert isinstance(step["terms"], dict)
    assert set(step["terms"]) == {"focal", "dice"}
    assert 0 < step["terms"]["dice"] < 1


def test_a_class_that_cannot_be_weighted_leaves_no_run(job_path: Path) -> None:
    job_path.write_text(job_path.read_text() + '\n[[data.classes]]\nname = "lava"\nvalue = 9\n')
    with pytest.raises(DataError, match="lava"):
        _train(job_path, 'train.class_weights="median"')
    assert not (job_path.parent / "run").exists()
