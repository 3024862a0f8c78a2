"""What lies in a pack, by name, and what its head says; one version for all of it.

pack.json          the head: always the first of an archive
manifest.jsonl     each file of the pack with size and SHA-256
data.jsonl         each file of the data, from its root
job.toml           paths of data from `data/`
data/ run/ start/  data where it comes along; the training as far as it got; weights that it begins from
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from outsize.errors import RunError, explain

VERSION = 1
HEAD, MANIFEST, DATA_LIST, JOB = "pack.json", "manifest.jsonl", "data.jsonl", "job.toml"
DATA, RUN, START = "data", "run", "start"
SCRIPT, LOCK = "train.slurm.sh", "environment.txt"
STARTS = ("train.init", "model.weights")  # keys that name weights to begin from
DOCKER, APPTAINER = "Dockerfile", "apptainer.def"


def checked_head(tree: Any, path: Path) -> dict[str, Any]:
    """Return the head of a pack that this outsize can read."""
    if not isinstance(tree, dict) or "pack" not in tree:
        remedy = "name a file or folder that `outsize pack` wrote"
        raise RunError(explain(f"{path} is no pack", f"no version in {HEAD}", "a pack", remedy))
    version = tree["pack"]
    if not isinstance(version, int) or not 1 <= version <= VERSION:
        need, remedy = (
            f"version {VERSION} or older",
            "unpack it with the outsize that wrote it, or a newer one",
        )
        raise RunError(explain(f"{path} has another version of packs", repr(version), need, remedy))
    return tree
