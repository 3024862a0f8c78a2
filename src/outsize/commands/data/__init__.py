"""Verbs for what goes into a training: files fetched, a job written for them, all of it read once.

acquire (a list -> files) -> init (files -> a job) -> prepare (raw files -> what training reads)
                                                   -> check (a job -> split.json, data.json, what is wrong)
"""

from outsize.commands.data.acquire import acquire
from outsize.commands.data.check import check
from outsize.commands.data.init import init
from outsize.commands.data.prepare import prepare

__all__ = ["acquire", "check", "init", "prepare"]
