"""What was measured, on what and how: one value and one file format for all benches, and for whoever compares them.

bench   --> Measurement --> write_measurement --> bench/KIND.json (version 1; docs/measurement.md)
compare <-- Measurement <-- read_measurement  <-- one of that format, or a memory.json of before it
"""

from outsize.measurement.files import read_measurement, write_measurement
from outsize.measurement.values import Figure, Fingerprint, MeasuredJob, Measurement

__all__ = ["Figure", "Fingerprint", "MeasuredJob", "Measurement", "read_measurement", "write_measurement"]
