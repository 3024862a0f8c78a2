"""KITTI's measure of boxes: average precision at three difficulties, in each of the readings in use.

Objects that are small, hidden or cut off are easy, moderate or hard. What is too hard for a difficulty, a class that
looks much alike (Van for Car) and DontCare areas are neutral: whoever finds them is neither right nor wrong.

    boxes of all pictures -> pairs that overlap -> pass A: scores of what is found -> at most 41 thresholds
                                                   pass B: right and wrong at each threshold -> precision -> readings

Thresholds, rules and difficulties are rows of arrays. The order of the devkit matters only where several boxes overlap
several objects: those few are matched one object after the other, all rows at once.
http://www.cvlibs.net/datasets/kitti/eval_object.php
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outsize.data.boxes import IGNORED, Boxes, overlaps

CLASSES = {"Car": (0.7, "Van"), "Pedestrian": (0.5, "Person_sitting"), "Cyclist": (0.5, "")}  # IoU, neutral
DIFFICULTIES = {
    "easy": (40, 0, 0.15),
    "moderate": (25, 1, 0.30),
    "hard": (25, 2, 0.50),
}  # height, hidden, cut
RULES = ("height", "plain")  # with the official rule that low detections are neutral, or without it
READINGS = {
    "ap_11": slice(0, None, 4),  # the first definition: recalls 0, 0.1, ... 1
    "ap_40": slice(1, None),  # of the official table since 2019: recalls 1/40 ... 1
    "ap_41": slice(None),  # mean of all samples, as some programs print it
}
NUM_SAMPLES = 41
_WAYS = tuple(product(DIFFICULTIES, RULES))
_NEITHER, _NEUTRAL, _VALID = -1, 1, 0

Flags = NDArray[np.int8]  # way, box
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class PrecisionCurve:
    """Precision over recall of one class, difficulty and rule."""

    precision: Floats  # at 41 recalls, made to fall
    orientation: Floats | None  # the same, right ones weighted by how well their angle fits
    num_valid: int  # true objects that count

    def ap(self, reading: str) -> float:
        """Return the average precision of a reading; nan where no object counts."""
        return _mean(self.precision, reading) if self.num_valid else float("nan")

    def aos(self, reading: str) -> float | None:
        """Return the average orientation similarity of a reading, where angles were given."""
        if self.orientation is None:
            return None
        return _mean(self.orientation, reading) if self.num_valid else float("nan")


@dataclass(frozen=True)
class KittiScores:
    """The curves of all classes that were asked for, by class, difficulty and rule."""

    curves: Mapping[tuple[str, str, str], PrecisionCurve]

    def as_dict(self) -> dict[str, Any]:
        """Return every figure for scores.json: class -> rule -> reading -> difficulty."""
        tree: dict[str, Any] = {}
        for (name, difficulty, rule), curve in self.curves.items():
            own = tree.setdefault(name, {}).setdefault(rule, {})
            for reading in READINGS:
                own.setdefault(reading, {})[difficulty] = _figure(curve.ap(reading))
                if curve.orientation is not None:
                    own.setdefault(reading.replace("ap", "aos"), {})[difficulty] = _figure(curve.aos(reading))
            own.setdefault("num_valid", {})[difficulty] = curve.num_valid
            own.setdefault("precision", {})[difficulty] = [round(float(each), 6) for each in curve.precision]
        return tree


def kitti_scores(
    truth: Sequence[Boxes], found: Sequence[Boxes], classes: Sequence[str] = tuple(CLASSES)
) -> KittiScores:
    """Score what was found in each picture against what is true of it; names of classes in any case."""
    if len(truth) != len(found):
        raise ValueError(f"{len(truth)} pictures with truth, {len(found)} with boxes found")
    pictures = _Pictures.of(truth, found)
    known = {name.lower(): name for name in CLASSES}
    curves = {}
    for name in classes:
        least_iou, neutral = CLASSES[known[name.lower()]]
        for way, curve in zip(
            _WAYS, _curves(pictures, name.lower(), neutral.lower(), least_iou), strict=True
        ):
            curves[name, *way] = curve
    return KittiScores(curves)


def most_ap(num_valid: int, reading: str) -> float:
    """Return the average precision of objects that are all found without a fault: fewer than 41 leave samples out."""
    return _mean((np.arange(NUM_SAMPLES) < num_valid).astype(np.float64), reading)


@dataclass(frozen=True)
class _Pictures:
    """The boxes of all pictures one after the other, and which of a picture overlap."""

    true: Boxes
    found: Boxes
    pairs: tuple[NDArray[np.intp], NDArray[np.intp], Floats]  # true one, found one, IoU; ordered
    covered: Floats  # of each found one: the largest share of it in one DontCare area

    @staticmethod
    def of(truth: Sequence[Boxes], found: Sequence[Boxes]) -> _Pictures:
        true, all_found = _joined(truth), _joined(found)
        num_true, num_found = (np.array([len(each) for each in boxes]) for boxes in (truth, found))
        first_found = np.cumsum(num_found) - num_found
        # every true box with every box found in its picture
        of_true = np.repeat(np.arange(len(truth)), num_true)
        repeats = num_found[of_true]
        one = np.repeat(np.arange(len(true)), repeats)
        within = np.arange(len(one)) - np.repeat(np.cumsum(repeats) - repeats, repeats)
        other = first_found[of_true[one]] + within
        shared = overlaps(true.sides[one], all_found.sides[other])
        met = shared > 0
        one, other, shared = one[met], other[met], shared[met]
        iou = shared / (true.areas_px[one] + all_found.areas_px[other] - shared)
        ignored = np.char.lower(true.labels[one]) == IGNORED.lower()
        covered = np.zeros(len(all_found))
        np.maximum.at(covered, other[ignored], (shared / all_found.areas_px[other])[ignored])
        return _Pictures(true, all_found, (one[~ignored], other[~ignored], iou[~ignored]), covered)


def _joined(pictures: Sequence[Boxes]) -> Boxes:
    names = Boxes.__dataclass_fields__
    return Boxes(**{name: np.concatenate([getattr(each, name) for each in pictures]) for name in names})


def _curves(pictures: _Pictures, name: str, neutral: str, least_iou: float) -> list[PrecisionCurve]:
    true_flags, found_flags = (
        _flags_of_truth(pictures.true, name, neutral),
        _flags_of_found(pictures.found, name),
    )
    one, other, iou = pictures.pairs
    wanted = (
        (iou > least_iou) & (true_flags != _NEITHER).any(0)[one] & (found_flags != _NEITHER).any(0)[other]
    )
    one, other, iou = one[wanted], other[wanted], iou[wanted]
    alone = (np.bincount(one)[one] == 1) & (np.bincount(other)[other] == 1) if len(one) else wanted[:0]
    angles = pictures.true.alphas[one] - pictures.found.alphas[other]
    plain = _Met(one[alone], other[alone], iou[alone], (1 + np.cos(angles[alone])) / 2)
    tangled = _Met(one[~alone], other[~alone], iou[~alone], (1 + np.cos(angles[~alone])) / 2)
    flags = _Flags(true_flags, found_flags, pictures.found.scores, pictures.covered > least_iou)
    num_valid = (true_flags == _VALID).sum(1)
    thresholds = [
        _thresholds(scores, int(num))
        for scores, num in zip(_pass_a(plain, tangled, flags), num_valid, strict=True)
    ]
    counts = _pass_b(plain, tangled, flags, thresholds)
    return [
        _curve(counts, way, len(own), int(num_valid[way]), pictures.found.have_angles)
        for way, own in enumerate(thresholds)
    ]


def _flags_of_truth(true: Boxes, name: str, neutral: str) -> Flags:
    """Say of each true box, at each difficulty, whether it counts, is neutral, or has nothing to do with the class."""
    labels = np.char.lower(true.labels)
    is_own, is_neutral = labels == name, (labels == neutral) & (neutral != "")
    flags = np.full((len(_WAYS), len(true)), _NEITHER, np.int8)
    for row, (difficulty, _) in enumerate(_WAYS):
        least_px, most_hidden, most_cut = DIFFICULTIES[difficulty]
        fits = (true.heights_px >= least_px) & (true.occluded <= most_hidden) & (true.truncated <= most_cut)
        flags[row, is_neutral | (is_own & ~fits)] = _NEUTRAL
        flags[row, is_own & fits] = _VALID
    return flags


def _flags_of_found(found: Boxes, name: str) -> Flags:
    is_own = np.char.lower(found.labels) == name
    flags = np.full((len(_WAYS), len(found)), _NEITHER, np.int8)
    flags[:, is_own] = _VALID
    whole_px = np.trunc(np.abs(found.heights_px))
    for row, (difficulty, rule) in enumerate(_WAYS):
        if rule == "height":  # whatever its class
            flags[row, whole_px < DIFFICULTIES[difficulty][0]] = _NEUTRAL
    return flags


@dataclass(frozen=True)
class _Met:
    """Pairs of a true and a found box that overlap enough."""

    one: NDArray[np.intp]
    other: NDArray[np.intp]
    iou: Floats
    similarity: Floats  # of their angles, 0 to 1


@dataclass(frozen=True)
class _Flags:
    true: Flags
    found: Flags
    scores: Floats
    covered: NDArray[np.bool_]  # a found one that lies in a DontCare area


@dataclass
class _Counts:
    """At each way and threshold: right ones, how well their angles fit, all answers, matched answers."""

    right: Floats
    similar: Floats
    answers: Floats
    used_up: Floats


def _pass_a(plain: _Met, tangled: _Met, flags: _Flags) -> list[Floats]:
    """Return for each way the scores of found boxes that are right when each object takes the surest one."""
    num_ways = len(_WAYS)
    valid = (flags.true[:, plain.one] == _VALID) & (flags.found[:, plain.other] == _VALID)
    scores = [flags.scores[plain.other[own]] for own in valid]
    taken = np.zeros((num_ways, len(flags.scores)), np.bool_)
    more: list[list[float]] = [[] for _ in range(num_ways)]
    for true, found, _, _ in _by_object(tangled):
        is_free = ~taken[:, found] & (flags.found[:, found] != _NEITHER)
        is_free &= (flags.true[:, true] != _NEITHER)[:, None]
        best = np.where(is_free, flags.scores[found], -np.inf).argmax(1)
        for way in np.flatnonzero(is_free.any(1)).tolist():
            chosen = found[best[way]]
            taken[way, chosen] = True
            if flags.true[way, true] == _VALID and flags.found[way, chosen] == _VALID:
                more[way].append(float(flags.scores[chosen]))
    return [np.concatenate((own, others)) for own, others in zip(scores, more, strict=True)]


def _thresholds(scores: Floats, num_valid: int) -> list[float]:
    """Return the scores at which recall comes nearest to the 41 samples."""
    found: list[float] = []
    recall, ordered = 0.0, np.sort(scores)[::-1].tolist()
    for index, score in enumerate(ordered):
        is_last = index == len(ordered) - 1
        here = (index + 1) / num_valid
        after = here if is_last else (index + 2) / num_valid
        if after - recall < recall - here and not is_last:
            continue
        found.append(score)
        recall += 1 / (NUM_SAMPLES - 1.0)
    return found[:NUM_SAMPLES]


def _pass_b(plain: _Met, tangled: _Met, flags: _Flags, thresholds: Sequence[Sequence[float]]) -> _Counts:
    """Count right and wrong at each way and threshold, when each object takes the box that overlaps it most."""
    shape = (len(_WAYS), NUM_SAMPLES)
    least = np.full(shape, np.inf)
    for row, own in zip(least, thresholds, strict=True):
        row[: len(own)] = own
    counts = _Counts(*(np.zeros(shape) for _ in range(4)))
    for way in range(len(_WAYS)):
        true, found = flags.true[way, plain.one], flags.found[way, plain.other]
        met = (true != _NEITHER) & (found != _NEITHER)
        valid = met & (true == _VALID) & (found == _VALID)
        gone = met & (found == _VALID) & ~flags.covered[plain.other]
        scores = flags.scores[plain.other]
        counts.right[way] = _at_least(scores[valid], least[way])
        counts.similar[way] = _at_least(scores[valid], least[way], plain.similarity[valid])
        counts.used_up[way] = _at_least(scores[gone], least[way])
        wrong = (flags.found[way] == _VALID) & ~flags.covered
        counts.answers[way] = _at_least(flags.scores[wrong], least[way])
    _untangle(tangled, flags, least, counts)
    counts.answers += counts.right - counts.used_up  # what is matched to a neutral object is no answer
    return counts


def _untangle(tangled: _Met, flags: _Flags, least: Floats, counts: _Counts) -> None:
    """Match objects and boxes that overlap several of the other, in the order of the file, all thresholds at once."""
    local = {found: number for number, found in enumerate(np.unique(tangled.other).tolist())}
    taken = np.zeros((*least.shape, len(local)), np.bool_)
    for true, found, iou, similarity in _by_object(tangled):
        columns = [local[each] for each in found.tolist()]
        kinds, own = flags.found[:, None, found], flags.true[:, true, None]
        is_free = (
            ~taken[:, :, columns] & (flags.scores[found] >= least[:, :, None]) & (own[:, :, None] != _NEITHER)
        )
        valid, neutral = is_free & (kinds == _VALID), is_free & (kinds == _NEUTRAL)
        has_valid = valid.any(2)
        best = np.where(has_valid, np.where(valid, iou, -1.0).argmax(2), neutral.argmax(2))
        way, step = np.nonzero(has_valid | neutral.any(2))
        chosen = best[way, step]
        taken[way, step, np.array(columns)[chosen]] = True
        is_valid = has_valid[way, step]
        right = is_valid & (flags.true[way, true] == _VALID)
        counts.right[way[right], step[right]] += 1
        counts.similar[way[right], step[right]] += similarity[chosen[right]]
        gone = is_valid & ~flags.covered[found[chosen]]
        counts.used_up[way[gone], step[gone]] += 1


def _by_object(met: _Met) -> list[tuple[int, NDArray[np.intp], Floats, Floats]]:
    """List each true box with the found ones that overlap it, both in the order of their files."""
    objects, starts = np.unique(met.one, return_index=True)
    ends = np.append(starts[1:], len(met.one))[: len(objects)].tolist()
    return [
        (true, met.other[first:end], met.iou[first:end], met.similarity[first:end])
        for true, first, end in zip(objects.tolist(), starts.tolist(), ends, strict=True)
    ]


def _at_least(scores: Floats, least: Floats, weights: Floats | None = None) -> Floats:
    """Count the scores of at least each threshold, or add up their weights."""
    order = np.argsort(scores)
    below = np.searchsorted(scores[order], least, side="left")
    if weights is None:
        return (len(scores) - below).astype(np.float64)
    sums = np.concatenate(([0.0], np.cumsum(weights[order][::-1])))
    total: Floats = sums[len(scores) - below]
    return total


def _curve(counts: _Counts, way: int, num: int, num_valid: int, has_angles: bool) -> PrecisionCurve:
    answers = np.maximum(counts.answers[way, :num], 1)
    precision, orientation = np.zeros(NUM_SAMPLES), np.zeros(NUM_SAMPLES)
    precision[:num] = counts.right[way, :num] / answers
    orientation[:num] = counts.similar[way, :num] / answers
    falling = [np.maximum.accumulate(each[::-1])[::-1] for each in (precision, orientation)]
    return PrecisionCurve(falling[0], falling[1] if has_angles else None, num_valid)


def _mean(samples: Floats, reading: str) -> float:
    return float(samples[READINGS[reading]].mean())


def _figure(value: float | None) -> float | None:
    return None if value is None or np.isnan(value) else round(value, 6)
