"""The verbs of `outsize bench`: one measurement each, left as KIND.json in the run's folder `bench`.

benching (setting): the job, the run held, the folder made --> Bench
    memory     every way to run a step            \\
                                                   >--> Measurement --> KIND.json, a table for a person
"""

from outsize.commands.bench.memory import memory

__all__ = ["memory"]
