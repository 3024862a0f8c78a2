"""The task `detect`: boxes of objects, each with a class and a score."""

from __future__ import annotations

from outsize.infer.cutting import Cutting
from outsize.tasks.detect import evaluate, predict, terms, truth
from outsize.tasks.detect.info import INFO
from outsize.tasks.task import Task

TASK = Task(
    INFO,
    make_loss_terms=terms.make_loss_terms,
    count_terms=terms.count_terms,
    complete=terms.complete,
    loss_on_shapes=terms.loss_on_shapes,
    samples=truth.open_samples,
    validate=truth.validate,
    cutting=Cutting(terms.halo, terms.DetectorOnShapes, exactly=False),
    products=predict.products_for,
    predict=predict.predict_scenes,
    predict_one=predict.predict_one,
    evaluate=evaluate.evaluate,
    score_lines=evaluate.score_lines,
    compare=evaluate.compare,
    comparison_lines=evaluate.comparison_lines,
    tiles_train=False,
)
