"""Sections of the page, one per file.

aside                      several runs in one table
run                        one run: the chapter of its task, then
  training, usage, moves   how it was trained, what that took, what moved to host memory
  benches, origins         what was measured, planned, and asked for by its job
"""

from outsize.report.sections.aside import show_runs
from outsize.report.sections.run import show_run

__all__ = ["show_run", "show_runs"]
