"""The same job run under several plans, sizes or machines, measured side by side; one file for each kind."""

from __future__ import annotations

ROUNDS = 8  # turns of each way unless asked otherwise; here, for the command line tells it and loads no torch
