"""Results of others are not written over, and two predictions of one output do not meet."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from outsize.errors import InUseError, OutputError
from outsize.files.ownership import MADE_BY, Consent, mark
from outsize.infer.ledger import add_to_ledger
from outsize.infer.outputs import refuse_to_take, taking

SCENE = Path("scene.tif")


def _paths(folder: Path) -> list[Path]:
    return [folder / "a.tif", folder / "a.qml", folder / "a.gpkg"]


@pytest.mark.parametrize("name", ["a.tif", "a.qml", "a.gpkg"])
def test_files_of_others_stay_unless_a_user_says_so(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("mine")
    match = rf"{name} would be written over: found a file of other make.*add --overwrite"
    with pytest.raises(OutputError, match=match):
        refuse_to_take(_paths(tmp_path), SCENE)
    with pytest.raises(OutputError, match=match), taking(_paths(tmp_path), SCENE):
        pytest.fail("taken")
    with taking(_paths(tmp_path), SCENE, Consent(overwrite=True)):
        pass
    (tmp_path / name).write_text(MADE_BY)
    with taking(_paths(tmp_path), SCENE):
        pass
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_results_of_earlier_versions_are_known_by_the_ledger(tmp_path: Path) -> None:
    for path in _paths(tmp_path):
        path.write_text("an earlier one")
    entry = {"scene": str(SCENE), "map": "elsewhere/a.tif", "polygons": "elsewhere/a.gpkg"}
    add_to_ledger(tmp_path, entry, {})
    refuse_to_take(_paths(tmp_path), SCENE)
    with pytest.raises(OutputError, match=r"found the map of .*scene.tif"):
        refuse_to_take(_paths(tmp_path), Path("other.tif"))
    add_to_ledger(tmp_path, {**entry, "files": ["a.tif"]}, {})  # this version writes its name into them
    with pytest.raises(OutputError, match="files of other make"):
        refuse_to_take(_paths(tmp_path), SCENE)


def test_the_predictions_of_a_run_are_its_own(tmp_path: Path) -> None:
    folder = tmp_path / "run" / "predictions"
    folder.mkdir(parents=True)
    _paths(folder)[0].write_text("by an earlier version, before another training")
    with pytest.raises(OutputError, match="of other make"):
        refuse_to_take(_paths(folder), SCENE)
    mark(tmp_path / "run")
    refuse_to_take(_paths(folder), SCENE)


def test_the_second_of_two_is_told_of_the_first(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from outsize.files.locks import holding\n"
        "with holding(Path(sys.argv[1]), 'map', 'predict'):\n    print('held', flush=True); sys.stdin.readline()"
    )
    command = [sys.executable, "-c", script, str(tmp_path / ".a.outsize.lock")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        match = rf"a.tif is in use: found `outsize predict`, process {other.pid} on "
        with pytest.raises(InUseError, match=match):
            refuse_to_take(_paths(tmp_path), SCENE, Consent(overwrite=True))
        with pytest.raises(InUseError, match=match), taking(_paths(tmp_path), SCENE):
            pytest.fail("both are in")
        with taking([tmp_path / "b.tif"], SCENE):  # another scene into the same folder
            pass
        other.communicate(b"\n")
    with taking(_paths(tmp_path), SCENE):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_was_made_for_nothing_goes_again(tmp_path: Path) -> None:
    with pytest.raises(KeyError), taking(_paths(tmp_path / "deep" / "maps"), SCENE):
        raise KeyError
    assert list(tmp_path.iterdir()) == []


def test_entries_of_several_processes_are_all_kept(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from outsize.infer.ledger import add_to_ledger\n"
        "for number in range(25):\n"
        "    entry = {'scene': f'/{sys.argv[2]}-{number}.tif', 'map': f'{sys.argv[2]}-{number}.tif'}\n"
        "    add_to_ledger(Path(sys.argv[1]), entry, {})"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    children = [
        subprocess.Popen([sys.executable, "-c", code, str(tmp_path), str(number)], env=environment)
        for number in range(3)
    ]
    assert [child.wait() for child in children] == [0, 0, 0]
    assert len(json.loads((tmp_path / "predict.json").read_text())["scenes"]) == 75
    assert [path.name for path in tmp_path.iterdir()] == ["predict.json"]
