"""The planner puts the optimizer's state into shards where all of it does not fit, or where it is asked to."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.commands.test_plan import events
from typer.testing import CliRunner

from outsize.cli import app
from outsize.errors import JobError, PlanError
from outsize.planning.situation import Sharing


@pytest.mark.long
def test_gpus_keep_shards_of_the_optimizers_state_where_all_of_it_does_not_fit(job_path: Path) -> None:
    small = (
        "--set",
        "model.width=16",
        "--set",
        "model.levels=5",
        "--set",
        "train.batch=4",
        "--gpu",
        "v100-16",
    )
    small += ("--set", "limits.gpu_memory=28MiB", "--set", "limits.host_memory=1MiB")
    refused = CliRunner().invoke(app, ["plan", str(job_path), *small])
    assert isinstance(refused.exception, PlanError)
    (train, _) = events(str(job_path), *small, "--gpus", "4")["plan"]
    assert train["exact"]
    assert train["replicate"] == {"shards": 4}
    assert "the optimizer's state is in 4 shards" in str(train["text"])
    roomy = events(str(job_path), "--gpu", "v100-16", "--gpus", "2", "--shard")["plan"][0]
    assert roomy["replicate"] == {"shards": 2}


def test_shards_do_not_go_with_stages() -> None:
    with pytest.raises(JobError, match="--shard does not go with stages: found 2"):
        Sharing(stages=2, shard=True)
