"""Whatever is wrong with JSON or TOML of others is a ValueError."""

from __future__ import annotations

from pathlib import Path

import pytest

from outsize.files.trees import json_tree, read_json_tree, toml_tree


@pytest.mark.parametrize(
    "text", ["[" * 100_000, '{"a":' * 100_000, "9" * 5000, "", "{", b"\xff\xfe\xff", "nan"]
)
def test_json_of_others(text: str | bytes, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r".+"):
        json_tree(text)
    path = tmp_path / "a.json"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.raises(ValueError, match=r".+"):
        read_json_tree(path)


@pytest.mark.parametrize(
    "text", ["a = " + "[" * 100_000, "a = " + "{a=" * 10_000, "a = 1e", "=", "a." * 5000]
)
def test_toml_of_others(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        toml_tree(text)


def test_what_is_right_is_parsed() -> None:
    assert json_tree('{"a": [1]}') == {"a": [1]}
    assert toml_tree("a = [1]") == {"a": [1]}
