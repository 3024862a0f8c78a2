"""Published tables are read as they stand, and every one of them says where it is from."""

from __future__ import annotations

import pytest

from outsize.errors import JobError
from outsize.plan.links import find_link
from outsize.plan.machines import find_machine
from outsize.report.published import NAMES, published


@pytest.mark.parametrize("name", NAMES)
def test_every_table_has_a_source_and_rows(name: str) -> None:
    found = published(name)
    assert found.title
    assert len(found.source) > 20
    assert len(found.rows) >= 2
    for tree in (found.facts, *found.rows):
        if "gpu" in tree:
            assert find_machine(tree["gpu"])
        for key in ("inside", "link"):
            if key in tree:
                assert find_link(tree[key])


def test_balances_count_the_layers_of_their_networks() -> None:
    flat = published("torchgpipe-unet")
    assert {sum(row["balance"]) for row in flat.rows} == {241}
    balances = {
        each["name"]: sum(each["balance"])
        for each in published("unet-summit").facts["pipelines"]
        if "name" in each
    }
    assert balances == {"small": 109, "medium-2": 129}


def test_an_unknown_table_is_refused() -> None:
    with pytest.raises(JobError, match="unknown published table"):
        published("nobody")
