"""Verbs for what goes into a training: files fetched, a job written for them, all of it read once.

acquire (a list -> files) -> init (files -> a job) -> check (a job -> split.json, data.json, what is wrong)
"""

from outsize.commands.data.acquire import acquire
from outsize.commands.data.check import check
from outsize.commands.data.init import init

__all__ = ["acquire", "check", "init"]
