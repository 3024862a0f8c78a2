"""The verbs of `outsize bench`: one measurement each, left as KIND.json in the run's folder `bench`.

benching (setting): the job, the run held, the folder made
  '-> memory, batch, fit, profile, scaling, share --> Measurement --> KIND.json, and a table for a person
"""

from outsize.commands.bench.batch import batch
from outsize.commands.bench.fit import fit
from outsize.commands.bench.memory import memory
from outsize.commands.bench.profile import profile
from outsize.commands.bench.scaling import scaling
from outsize.commands.bench.share import share

__all__ = ["batch", "fit", "memory", "profile", "scaling", "share"]
