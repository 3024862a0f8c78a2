"""Puts a job's name before the mistakes that rooms below find in its values: they never see the file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from outsize.errors import JobError, ModelError, PlanError


@contextmanager
def naming(job_path: Path) -> Iterator[None]:
    """Name the job in errors about models, limits and other values of it that do not name a file themselves."""
    try:
        yield
    except (JobError, ModelError, PlanError) as error:
        if os.sep in str(error).partition(": found ")[0]:  # its first part names a file already
            raise
        raise type(error)(f"{job_path}: {error}") from error
