"""The task `classify`: one class for each picture."""

from __future__ import annotations

from outsize.infer.cutting import Cutting
from outsize.tasks.classify import answers, compare, evaluate, predict, terms
from outsize.tasks.classify.info import INFO
from outsize.tasks.task import Task

TASK = Task(
    INFO,
    make_loss_terms=terms.make_loss_terms,
    count_terms=terms.count_terms,
    complete=terms.complete,
    loss_on_shapes=terms.loss_on_shapes,
    samples=terms.open_samples,
    validate=answers.validate,
    cutting=Cutting(terms.halo, terms.PicturesOnShapes, terms.seen_px, exactly=False),
    products=predict.products_for,
    predict=predict.predict_scenes,
    predict_one=predict.predict_one,
    evaluate=evaluate.evaluate,
    score_lines=evaluate.score_lines,
    compare=compare.compare,
    comparison_lines=compare.comparison_lines,
    tiles_train=False,
)
