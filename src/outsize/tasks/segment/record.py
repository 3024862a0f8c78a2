"""The task `segment`: one class for each pixel."""

from __future__ import annotations

from outsize.infer.cutting import PER_PIXEL
from outsize.tasks.segment import maps, scores, terms
from outsize.tasks.segment.info import INFO
from outsize.tasks.task import Task
from outsize.tasks.windows import open_windows

TASK = Task(
    INFO,
    make_loss_terms=terms.make_loss_terms,
    count_terms=terms.count_terms,
    wanted_maps=terms.wanted_maps,
    complete=terms.complete,
    loss_on_shapes=terms.loss_on_shapes,
    is_local=terms.is_local,
    samples=open_windows,
    validate=scores.validate,
    cutting=PER_PIXEL,
    products=maps.products_for,
    predict=maps.predict_scenes,
    spreads=True,
    predict_one=maps.predict_one,
    evaluate=scores.evaluate,
    score_lines=scores.score_lines,
    compare=scores.compare,
    comparison_lines=scores.comparison_lines,
)
