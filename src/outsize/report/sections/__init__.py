"""Sections of the page, one per file.

side_by_side               several runs in one table
run                        one run: the chapter of its task, then
  training, usage, moves   how it was trained, what that took, what moved to host memory
  benches, origins         what was measured, planned, and asked for by its job
"""

from outsize.report.sections.run import show_run
from outsize.report.sections.side_by_side import show_runs

__all__ = ["show_run", "show_runs"]
