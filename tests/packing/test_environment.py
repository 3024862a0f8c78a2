"""What goes along to run a job elsewhere: versions that pip finds, a wheel that it installs."""

from __future__ import annotations

import base64
import hashlib
import io
import re
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

import outsize
from outsize.packing.environment import apptainer, dockerfile, lock_text, locked, make_wheel, wheel_name


def test_versions_are_those_installed_without_the_kind_of_device() -> None:
    lines = locked()
    assert f"torch=={metadata.version('torch').partition('+')[0]}" in lines
    assert f"tomli-w=={metadata.version('tomli-w')}" in lines
    assert "sympy" in {each.partition("==")[0] for each in lines}  # what torch stands on
    assert all(re.fullmatch(r"[a-z0-9-]+==[0-9][A-Za-z0-9.]*", each) for each in lines)
    assert not [each for each in lines if each.startswith(("outsize=", "pytest=", "ruff="))]
    assert lock_text().splitlines()[0].endswith(wheel_name())


def test_the_wheel_is_the_code_that_runs_here() -> None:
    wheel = make_wheel()
    assert wheel == make_wheel()
    source = Path(outsize.__file__).parent
    with zipfile.ZipFile(io.BytesIO(wheel)) as archive:
        names = archive.namelist()
        assert archive.read("outsize/cli/verbs.py") == (source / "cli/verbs.py").read_bytes()
        assert "outsize/known/kitti.toml" in names
        assert not [each for each in names if "__pycache__" in each]
        (record,) = [each for each in names if each.endswith("RECORD")]
        for line in archive.read(record).decode().splitlines():
            name, digest, size = line.rsplit(",", 2)
            if digest:
                data = archive.read(name)
                found = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
                assert (digest, int(size)) == (f"sha256={found}", len(data))


@pytest.mark.long
def test_pip_installs_the_wheel(tmp_path: Path) -> None:
    wheel = tmp_path / wheel_name()
    wheel.write_bytes(make_wheel())
    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--no-index",
        "--target",
        tmp_path / "into",
    ]
    subprocess.run([*pip, wheel], check=True, capture_output=True)
    assert (tmp_path / "into/bin/outsize").is_file()
    assert (tmp_path / "into/outsize/packing/pack.py").is_file()


def test_containers_install_what_the_pack_names() -> None:
    for text in (dockerfile(), apptainer()):
        assert wheel_name() in text
        assert f"python:{sys.version_info.major}.{sys.version_info.minor}-slim" in text
        assert "--resume" in text
