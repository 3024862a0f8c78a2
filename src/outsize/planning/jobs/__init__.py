"""A job on a machine: what is known of it, and the plans that are made from that.

lay (groundwork): data found and shared out, model built
  '-> plan_job (preparing): planning, with what is tried; or recalling what was planned before --> Planned
        '-> prepare: reads the data once --> Prepared: all that training needs before its first step
              '-> tightening (shortage): the next plan, when memory ran out
"""

from outsize.planning.jobs.groundwork import count_steps, lay
from outsize.planning.jobs.planning import train_task
from outsize.planning.jobs.preparing import Planned, Prepared, plan_job, prepare
from outsize.planning.jobs.shortage import tightening

__all__ = [
    "Planned",
    "Prepared",
    "count_steps",
    "lay",
    "plan_job",
    "prepare",
    "tightening",
    "train_task",
]
