"""Verbs that carry a job to other machines.

launch    a script for Slurm, written from the plan and submitted
pack      the job, its training so far and what it needs in one file;  unpack: the same where it goes on
"""

from outsize.commands.elsewhere.launch import launch
from outsize.commands.elsewhere.pack import pack, unpack

__all__ = ["launch", "pack", "unpack"]
