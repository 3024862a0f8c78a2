"""Verbs that read a run and say what it is worth.

RUN -> info (how far it got), evaluate (its maps against labels; two runs), verify (the proof), report (its page)
RUN ... , files of benches -> compare (side by side on one page)
"""

from outsize.commands.results.compare import compare
from outsize.commands.results.evaluate import evaluate, evaluate_two
from outsize.commands.results.info import info
from outsize.commands.results.report import report
from outsize.commands.results.verify import verify

__all__ = ["compare", "evaluate", "evaluate_two", "info", "report", "verify"]
