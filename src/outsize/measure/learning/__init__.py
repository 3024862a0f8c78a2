"""What real steps on the machine at hand teach: times of operations and of the host, memory that stays idle.

step --> look_at (look) --> Seen --> taught_by (lessons) --> Learnt: real over modelled times
         | the clock, the profiler                           | remembered: recall_or_learn, relearn
         | each operation (operations)
"""

from outsize.measure.learning.lessons import recall_lesson, recall_or_learn, relearn, taught_by
from outsize.measure.learning.look import SeenStep, device_and_host_s, look_at

__all__ = [
    "SeenStep",
    "device_and_host_s",
    "look_at",
    "recall_lesson",
    "recall_or_learn",
    "relearn",
    "taught_by",
]
