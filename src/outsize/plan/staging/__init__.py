"""How a model is cut into so many stages for a job, and how with less memory.

layers of a micro-batch --cut, folded--> Partition --played out--> Staged: the setting of a plan, its time, its memory
"""

from outsize.plan.staging.choice import Staged, StagesAsked, stage_ways, tighter_stages

__all__ = ["Staged", "StagesAsked", "stage_ways", "tighter_stages"]
