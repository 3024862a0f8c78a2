"""Memory by pages, by the driver through ctypes: addresses are plenty, and pages are put behind those in use.

PagedMemory (memory) --> addresses   torch's allocator asks here, and is handed addresses without memory
                    |--> apart       each operation of a capture takes addresses of its own
                    |--> sharing     which addresses may have the same page: never in use at once
                    '--> pages       reserve, map and free: all calls of the driver
"""

from outsize.strategies.cudagraph.pages.memory import PagedMemory, why_not_paged
from outsize.strategies.cudagraph.pages.pages import NO_MEMORY

__all__ = ["NO_MEMORY", "PagedMemory", "why_not_paged"]
