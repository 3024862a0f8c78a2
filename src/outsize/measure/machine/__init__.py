"""The machine at hand: its devices, its memory, and what it does in a second.

name of a device --> pick_device (machine) --> look_at_machine --> Machine
                                           --> machine_rates (bandwidth) --> Rates: measured once, remembered
host memory: free_host_bytes, host_room_bytes (host)
"""

from outsize.measure.machine.bandwidth import machine_rates
from outsize.measure.machine.host import free_host_bytes, host_room_bytes
from outsize.measure.machine.machine import look_at_machine, pick_device

__all__ = ["free_host_bytes", "host_room_bytes", "look_at_machine", "machine_rates", "pick_device"]
