"""The task `instances`: objects, each with a class, a box and a mask."""

from __future__ import annotations

from outsize.infer.cutting import Cutting
from outsize.tasks.instances import compare, evaluate, predict, terms, truth
from outsize.tasks.instances.info import INFO
from outsize.tasks.task import Task
from outsize.tasks.windows import open_windows

TASK = Task(
    INFO,
    make_loss_terms=terms.make_loss_terms,
    count_terms=terms.count_terms,
    complete=terms.complete,
    loss_on_shapes=terms.loss_on_shapes,
    samples=open_windows,
    validate=truth.validate,
    cutting=Cutting(terms.halo, terms.OnShapes, exactly=False),
    products=predict.products_for,
    predict=predict.predict_scenes,
    predict_one=predict.predict_one,
    evaluate=evaluate.evaluate,
    score_lines=evaluate.score_lines,
    compare=compare.compare,
    comparison_lines=compare.comparison_lines,
    tiles_train=False,
    records=False,  # objects differ in number
)
