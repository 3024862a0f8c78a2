"""Reads all data once and says what is wrong with it before a training begins.

images, labels --> open_and_count --> check_data (check) --> Checked (checked): save, and load_or_check: data.json
                     '- tally: one scene    '- problems: of the data as a whole;  objects: how many there are
before, of labels alone: refuse_early (census);  to a person: say_or_refuse (telling)
"""

from outsize.data.checking.census import refuse_early
from outsize.data.checking.check import check_data, load_or_check, open_and_count
from outsize.data.checking.checked import Checked, save
from outsize.data.checking.objects import most_in_window
from outsize.data.checking.telling import say_or_refuse

__all__ = [
    "Checked",
    "check_data",
    "load_or_check",
    "most_in_window",
    "open_and_count",
    "refuse_early",
    "save",
    "say_or_refuse",
]
