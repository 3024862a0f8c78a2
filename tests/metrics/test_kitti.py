"""KITTI's measure is that of a devkit written out in loops, and of the published files."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import numpy as np
import pytest

from outsize.data.boxes import Boxes, gather, no_boxes
from outsize.data.formats.boxed import read_kitti
from outsize.metrics.kitti import CLASSES, DIFFICULTIES, READINGS, RULES, kitti_scores, most_ap

_REAL = Path(__file__).parents[3] / "shared/data/kitti"
_LABELS = ("Car", "car", "Van", "Pedestrian", "Person_sitting", "Cyclist", "Truck", "DontCare")


def car(*sides: float, label: str = "Car", **about: object) -> Boxes:
    return gather([sides], [label], **{name: [value] for name, value in about.items()})


def both(*boxes: Boxes) -> Boxes:
    names = Boxes.__dataclass_fields__
    return Boxes(**{name: np.concatenate([getattr(each, name) for each in boxes]) for name in names})


def ap(
    truth: Boxes, found: Boxes, difficulty: str = "easy", rule: str = "height", label: str = "Car"
) -> float:
    return kitti_scores([truth], [found]).curves[label, difficulty, rule].ap("ap_41")


def test_all_found_is_one_and_nothing_found_is_zero() -> None:
    truth = car(0, 0, 100, 50)
    assert ap(truth, truth) == pytest.approx(1 / 41)  # one object reaches one sample of recall
    many = gather([[i * 200, 0, i * 200 + 100, 50] for i in range(50)], ["Car"] * 50)
    assert ap(many, many) == 1.0
    assert ap(many, no_boxes()) == 0.0
    assert np.isnan(ap(no_boxes(), truth))


@pytest.mark.parametrize("num", [1, 21, 40, 41, 60])
def test_few_objects_have_less_than_one_when_all_are_found(num: int) -> None:
    truth = gather([[i * 200, 0, i * 200 + 100, 50] for i in range(num)], ["Car"] * num)
    curve = kitti_scores([truth], [truth]).curves["Car", "easy", "height"]
    for reading in READINGS:
        assert curve.ap(reading) == pytest.approx(most_ap(num, reading))


def test_the_overlap_must_be_larger_than_the_limit() -> None:
    assert ap(car(0, 0, 100, 50), car(0, 0, 70, 50)) == 0.0
    assert ap(car(0, 0, 100, 50), car(0, 0, 70.1, 50)) > 0.0
    person = car(0, 0, 100, 50, label="Pedestrian")
    assert ap(person, car(0, 0, 50.1, 50, label="Pedestrian"), label="Pedestrian") > 0.0


def test_difficulties_are_by_height_occlusion_and_truncation() -> None:
    scores = kitti_scores(
        [
            gather(
                [[0, 0, 99, 40], [0, 100, 99, 125], [0, 200, 99, 224], [0, 300, 99, 399], [0, 500, 99, 599]],
                ["Car"] * 5,
                occluded=[0, 1, 0, 2, 0],
                truncated=[0.15, 0, 0, 0, 0.5],
            )
        ],
        [no_boxes()],
    )
    num = {name: scores.curves["Car", name, "plain"].num_valid for name in DIFFICULTIES}
    assert num == {"easy": 1, "moderate": 2, "hard": 4}


def test_neighbours_and_areas_nobody_cares_for_are_neutral() -> None:
    truth = both(
        car(0, 0, 100, 50), car(200, 0, 300, 50, label="Van"), car(400, 0, 600, 90, label="DontCare")
    )
    right, on_van = car(0, 0, 100, 50, scores=0.9), car(200, 0, 300, 50, scores=0.95)
    in_area, wrong = car(420, 10, 520, 60, scores=0.97), car(700, 0, 800, 50, scores=0.99)
    assert ap(truth, both(right, on_van, in_area)) == pytest.approx(1 / 41)
    assert ap(truth, both(right, on_van, in_area, wrong)) == pytest.approx(0.5 / 41)


def test_low_answers_are_neutral_by_the_official_rule_alone() -> None:
    truth, low = car(0, 0, 100, 50), car(300, 0, 400, 39.9, scores=0.99)
    found = both(car(0, 0, 100, 50, scores=0.5), low)
    assert ap(truth, found, rule="height") == pytest.approx(1 / 41)
    assert ap(truth, found, rule="plain") == pytest.approx(0.5 / 41)


def test_angles_weigh_what_is_right() -> None:
    truth = car(0, 0, 100, 50, alphas=0.0)
    for alpha, share in ((0.0, 1.0), (np.pi, 0.0), (np.pi / 2, 0.5)):
        curve = kitti_scores([truth], [car(0, 0, 100, 50, alphas=alpha)]).curves["Car", "easy", "height"]
        assert curve.aos("ap_41") == pytest.approx(share / 41)
    assert kitti_scores([truth], [car(0, 0, 100, 50)]).curves["Car", "easy", "height"].aos("ap_41") is None


def test_figures_are_named() -> None:
    truth = car(0, 0, 100, 50, alphas=0.1)
    tree = kitti_scores([truth], [truth], ["Car", "Cyclist"]).as_dict()
    assert set(tree) == {"Car", "Cyclist"}
    assert set(tree["Car"]) == set(RULES)
    assert {"ap_11", "ap_40", "ap_41", "aos_11", "aos_40", "aos_41"} <= set(tree["Car"]["height"])
    assert tree["Cyclist"]["height"]["ap_11"]["easy"] is None
    assert len(tree["Car"]["plain"]["precision"]["hard"]) == 41


@pytest.mark.parametrize("seed", range(12))
def test_it_is_the_devkit_in_loops(seed: int) -> None:
    rng = np.random.default_rng(seed)
    truth = [_random(rng, int(rng.integers(0, 9))) for _ in range(6)]
    found = [_near(rng, each) for each in truth]
    scores = kitti_scores(truth, found)
    for (name, difficulty, rule), curve in scores.curves.items():
        precision, orientation, num_valid = _devkit(truth, found, name, difficulty, rule)
        assert curve.num_valid == num_valid
        np.testing.assert_allclose(curve.precision, precision, rtol=0, atol=1e-12)
        assert curve.orientation is not None
        np.testing.assert_allclose(curve.orientation, orientation, rtol=0, atol=1e-12)


@pytest.mark.realdata
@pytest.mark.skipif(not _REAL.is_dir(), reason="no KITTI files here")
def test_the_known_answer(tmp_path: Path) -> None:
    truth, found = (_unpacked(_REAL / f"{name}.tar.gz", columns, tmp_path) for name, columns in
                    (("val_gt", 15), ("val_pred", 16)))  # fmt: skip
    curves = kitti_scores(
        [truth[name] for name in sorted(truth)], [found[name] for name in sorted(truth)]
    ).curves
    known = {"easy": (398, 0.888766), "moderate": (1028, 0.788686), "hard": (1471, 0.630608)}
    for difficulty, (num_valid, value) in known.items():
        curve = curves["Car", difficulty, "plain"]
        assert curve.num_valid == num_valid
        assert curve.ap("ap_41") == pytest.approx(value, abs=1e-6)


def _unpacked(path: Path, columns: int, folder: Path) -> dict[str, Boxes]:
    found = {}
    with tarfile.open(path) as archive:
        for member in archive:
            if member.isfile():
                file = archive.extractfile(member)
                assert file is not None
                text = folder / "one.txt"
                text.write_bytes(io.BytesIO(file.read()).getvalue())
                found[Path(member.name).name] = read_kitti(text, columns)
    return found


def _random(rng: np.random.Generator, num: int) -> Boxes:
    """Draw boxes that crowd: many overlap each other."""
    corner, size = rng.uniform(0, 60, (num, 2)), rng.uniform(20, 70, (num, 2))
    return gather(
        np.concatenate((corner, corner + size), 1),
        rng.choice(_LABELS, num),
        truncated=rng.choice([0, 0.2, 0.4, 0.9], num),
        occluded=rng.integers(0, 4, num),
        alphas=rng.uniform(-3, 3, num),
    )


def _near(rng: np.random.Generator, truth: Boxes) -> Boxes:
    """Draw answers around true boxes, several for some, with few different scores."""
    which = rng.integers(0, len(truth), 2 * len(truth)) if len(truth) else np.zeros(0, int)
    sides = truth.sides[which] + rng.normal(0, 3, (len(which), 4))
    labels = np.where(rng.random(len(which)) < 0.8, truth.labels[which], rng.choice(_LABELS[:-1], len(which)))
    return gather(
        sides, labels, scores=rng.integers(1, 12, len(which)) / 12, alphas=rng.uniform(-3, 3, len(which))
    )


def _devkit(
    truth: list[Boxes], found: list[Boxes], name: str, difficulty: str, rule: str
) -> tuple[np.ndarray, np.ndarray, int]:
    """Do what the devkit does, one box after the other."""
    least_iou, neighbour = CLASSES[name]
    least_px, most_hidden, most_cut = DIFFICULTIES[difficulty]
    scores, num_valid, flags = [], 0, []
    for true, answers in zip(truth, found, strict=True):
        of_true, of_found = [], []
        for index in range(len(true)):
            label = true.labels[index].lower()
            is_hard = true.occluded[index] > most_hidden or true.truncated[index] > most_cut
            is_hard = is_hard or true.heights_px[index] < least_px
            is_own, is_neighbour = label == name.lower(), label == neighbour.lower() and neighbour
            of_true.append(0 if is_own and not is_hard else 1 if is_own or is_neighbour else -1)
            num_valid += of_true[-1] == 0
        for index in range(len(answers)):
            is_low = rule == "height" and int(abs(answers.heights_px[index])) < least_px
            of_found.append(1 if is_low else 0 if answers.labels[index].lower() == name.lower() else -1)
        flags.append((of_true, of_found))
        scores += _matched(true, answers, of_true, of_found, least_iou, None)[0]
    thresholds, recall = [], 0.0
    ordered = sorted(scores, reverse=True)
    for index, score in enumerate(ordered):
        left = (index + 1) / num_valid
        right = (index + 2) / num_valid if index < len(ordered) - 1 else left
        if right - recall < recall - left and index < len(ordered) - 1:
            continue
        thresholds.append(score)
        recall += 1 / 40.0
    precision, orientation = np.zeros(41), np.zeros(41)
    for index, threshold in enumerate(thresholds):
        right = wrong = similar = 0.0
        for true, answers, (of_true, of_found) in zip(truth, found, flags, strict=True):
            _, one, other, sums = _matched(true, answers, of_true, of_found, least_iou, threshold)
            right, wrong, similar = right + one, wrong + other, similar + sums
        if right + wrong:
            precision[index], orientation[index] = right / (right + wrong), similar / (right + wrong)
    for index in range(41):
        precision[index], orientation[index] = precision[index:].max(), orientation[index:].max()
    return precision, orientation, num_valid


def _matched(
    true: Boxes,
    answers: Boxes,
    of_true: list[int],
    of_found: list[int],
    least_iou: float,
    threshold: float | None,
) -> tuple[list[float], int, int, float]:
    used = [False] * len(answers)
    scores, right, similar = [], 0, 0.0
    for here in range(len(true)):
        if of_true[here] == -1:
            continue
        best, best_value, best_is_neutral = -1, -np.inf, False
        for there in range(len(answers)):
            if of_found[there] == -1 or used[there]:
                continue
            if threshold is not None and answers.scores[there] < threshold:
                continue
            shared = _shared(true.sides[here], answers.sides[there])
            iou = shared / (true.areas_px[here] + answers.areas_px[there] - shared)
            if iou <= least_iou:
                continue
            if threshold is None:
                if answers.scores[there] > best_value:
                    best, best_value = there, answers.scores[there]
            elif of_found[there] == 0 and (iou > best_value or best_is_neutral):
                best, best_value, best_is_neutral = there, iou, False
            elif of_found[there] == 1 and best == -1:
                best, best_is_neutral = there, True
        if best == -1:
            continue
        used[best] = True
        if of_true[here] == 0 and of_found[best] == 0:
            scores.append(float(answers.scores[best]))
            right += 1
            similar += (1 + np.cos(true.alphas[here] - answers.alphas[best])) / 2
    at = -np.inf if threshold is None else threshold
    wrong = [
        there
        for there in range(len(answers))
        if not used[there] and of_found[there] == 0 and answers.scores[there] >= at
    ]
    for here in range(len(true)):
        if true.labels[here] == "DontCare":
            wrong = [
                there
                for there in wrong
                if _shared(true.sides[here], answers.sides[there]) / answers.areas_px[there] <= least_iou
            ]
    return scores, right, len(wrong), similar


def _shared(one: np.ndarray, other: np.ndarray) -> float:
    width = min(one[2], other[2]) - max(one[0], other[0])
    height = min(one[3], other[3]) - max(one[1], other[1])
    return float(width * height) if width > 0 and height > 0 else 0.0
