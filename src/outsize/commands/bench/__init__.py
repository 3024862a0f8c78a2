"""The verbs of `outsize bench`: one measurement each, left as KIND.json in the run's folder `bench`.

benching (setting): the job, the run held, the folder made
  '-> memory, batch --> Measurement --> KIND.json, and a table for a person
"""

from outsize.commands.bench.batch import batch
from outsize.commands.bench.memory import memory

__all__ = ["batch", "memory"]
