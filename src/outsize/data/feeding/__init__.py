"""Work done ahead of its use, in order.

prefetch ----------------- threads of this process       (loader)
prefetch_in_processes ---- copies of this process        (loader)
BatchProcesses ----------- workers that make batches      (processes)
   '- their tensors come back through shared memory      (parcels)
"""

from outsize.data.feeding.loader import ended_by, num_cores, prefetch, prefetch_in_processes
from outsize.data.feeding.processes import BatchProcesses, can_share

__all__ = ["BatchProcesses", "can_share", "ended_by", "num_cores", "prefetch", "prefetch_in_processes"]
