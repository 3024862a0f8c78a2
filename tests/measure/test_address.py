"""Work is not begun where the libraries alone take the address space; for help there is enough."""

from __future__ import annotations

import pytest

from outsize import cli
from outsize.errors import RunError
from outsize.measure import address
from outsize.measure.address import refuse_little_address_space


def test_too_little_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(address, "address_space_bytes", lambda: 2 << 30)
    with pytest.raises(
        RunError, match=r"^host memory is too little to begin: found 2\.0 GiB of address space"
    ):
        refuse_little_address_space()
    for enough in (None, 64 << 30):
        monkeypatch.setattr(address, "address_space_bytes", lambda enough=enough: enough)
        refuse_little_address_space()


@pytest.mark.parametrize("verb", ["plan", "train", "predict", "verify", "evaluate"])
def test_verbs_that_compute_look_first(
    verb: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(address, "address_space_bytes", lambda: 2 << 30)
    monkeypatch.setattr("sys.argv", ["outsize", verb, "nowhere"])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == 2
    assert capsys.readouterr().err.startswith("outsize: host memory is too little to begin: found 2.0 GiB")
