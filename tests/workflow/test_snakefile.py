"""The Snakefile has a rule for each stage, in the order of the stages."""

from __future__ import annotations

import re
from pathlib import Path

from tests.workflow.lines import chain

from outsize.workflow.snakefile import snakefile


def test_each_stage_is_a_rule_after_the_one_before(tmp_path: Path) -> None:
    text = snakefile(chain(tmp_path, a="", b="", c=""), "marks")
    assert re.findall(r"^rule (\w+):", text, re.MULTILINE) == ["all", "a", "b", "c"]
    rules = dict(re.findall(r"^rule (\w+):\n    input: (.*)$", text, re.MULTILINE))
    assert rules == {
        "all": '"marks/c.done"',
        "a": f'"{tmp_path}/a.in"',
        "b": '"marks/a.done"',
        "c": '"marks/b.done"',
    }
    assert text.count("outsize evaluate") == 3
