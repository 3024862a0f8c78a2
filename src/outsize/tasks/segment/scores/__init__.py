"""Scores of class maps: against labels, against another run's maps, and of a model in training.

evaluate  a run's maps -> scores, pictures         lines     scores as text
compare   the maps of two runs                     validate  a model, without writing a map
count     map and labels -> counts, by windows     files     which files those are
places    the best, ordinary and worst of them     view, draw   pictures of a place
"""

from outsize.tasks.segment.scores.compare import compare, comparison_lines
from outsize.tasks.segment.scores.evaluate import evaluate
from outsize.tasks.segment.scores.lines import score_lines
from outsize.tasks.segment.scores.validate import validate

__all__ = ["compare", "comparison_lines", "evaluate", "score_lines", "validate"]
