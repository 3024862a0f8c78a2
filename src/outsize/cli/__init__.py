"""The command line: arguments, help, and the one line that a mistake ends with; starts without torch.

main   signals, warnings, errors -> exit codes
verbs  an option for each argument of a function in `commands`
"""

from __future__ import annotations

import os
import shlex
import sys
import warnings

from outsize.cli.memory_line import host_shortage
from outsize.cli.verbs import app
from outsize.errors import OutsizeError, ReportedElsewhere
from outsize.files.refused import refused_name
from outsize.stopping import Stopped, listening

__all__ = ["app", "main"]


def _let_memory_grow() -> None:
    """Set torch's allocator to expandable segments, unless the user has configured it.

    Its default is to keep blocks of the sizes that were asked for. Within a tight limit, where tensors are freed in
    another order than they were made, a tenth of the memory was lost to fragmentation, and steps that fit failed.
    """
    if not any(f"PYTORCH_{kind}ALLOC_CONF" in os.environ for kind in ("", "CUDA_", "HIP_")):
        os.environ["PYTORCH_ALLOC_CONF"] = "expandable_segments:True"


def _let_gdal_be_silent() -> None:
    """Keep GDAL from printing, unless the user has said where to: errors are reported in a line of our own."""
    os.environ.setdefault("CPL_LOG", os.devnull)


def main() -> None:
    """Run the command line; a mistake of the user is one line and exit code 2."""
    # Pillow warns of large pictures; outsize refuses what is too large by an error of its own
    warnings.filterwarnings("ignore", message="Image size .* exceeds limit", module="PIL.Image")
    _let_memory_grow()
    _let_gdal_be_silent()
    try:
        with listening():
            app()
    except (OutsizeError, MemoryError, OSError, RuntimeError, ImportError, SystemError) as error:
        shown = host_shortage(error) or refused_name(error) or error
        if not isinstance(shown, OutsizeError):
            raise
        if not isinstance(shown, ReportedElsewhere):
            sys.stderr.write(f"outsize: {shown}\n")
        sys.exit(shown.exit_code)
    except Stopped as stopped:
        sys.stderr.write(f"outsize: {_said_of(stopped, sys.argv[1:])}\n")
        sys.exit(stopped.exit_code)


def _said_of(stopped: Stopped, words: list[str]) -> str:
    """Say what a stopped verb saved, and the command that continues or starts again."""
    if stopped.is_saved:
        words = [each for each in words if each not in ("--overwrite", "--resume")] + ["--resume"]
    then = "to continue" if stopped.kept else "to start again"
    return f"stopped by {stopped}, {stopped.kept or 'nothing to save'}; {then}: {shlex.join(['outsize', *words])}"
