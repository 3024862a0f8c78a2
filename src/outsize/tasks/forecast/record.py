"""The task `forecast`: the frames that come."""

from __future__ import annotations

from outsize.infer.cutting import PER_PIXEL
from outsize.tasks.forecast import answers, compare, evaluate, predict, terms
from outsize.tasks.forecast.info import INFO
from outsize.tasks.task import Task

TASK = Task(
    INFO,
    make_loss_terms=terms.make_loss_terms,
    count_terms=terms.count_terms,
    complete=terms.complete,
    loss_on_shapes=terms.loss_on_shapes,
    is_local=terms.is_local,
    samples=terms.open_samples,
    validate=answers.validate,
    cutting=PER_PIXEL,
    products=predict.products_for,
    predict=predict.predict_scenes,
    predict_one=predict.predict_one,
    evaluate=evaluate.evaluate,
    score_lines=evaluate.score_lines,
    compare=compare.compare,
    comparison_lines=compare.comparison_lines,
)
