"""predict.json: which map belongs to which scene, over all calls that wrote into one folder."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from outsize.files.locks import holding
from outsize.runs import as_written, output_errors, read_json, write_json

LEDGER = "predict.json"
Ledger = Mapping[str, Mapping[str, Any]]  # by the resolved path of the scene


def read_ledger(folder: Path) -> dict[str, dict[str, Any]]:
    """Return what was predicted into a folder, by the resolved path of the scene."""
    path = folder / LEDGER
    if not path.is_file():
        return {}
    held = read_json(path, "predict")
    with as_written(path, "predict"):
        found = {_key(Path(entry["scene"])): entry for entry in held["scenes"]}
        for entry in found.values():
            if not all(isinstance(entry.get(name), str) for name in ("scene", "map")):
                raise TypeError("an entry without its map")
            if type(entry.get("unanswered_px", 0)) is not int:
                raise TypeError("a count that is none")
    return found


def add_to_ledger(folder: Path, entry: Mapping[str, Any], facts: Mapping[str, Any]) -> None:
    """Write an entry beside the earlier ones, and those that others add meanwhile."""
    path = folder / LEDGER
    with ExitStack() as stack:
        with output_errors(path):
            lock = folder / f".{LEDGER}.outsize.lock"
            stack.enter_context(holding(lock, str(path), "predict", wait=True))
        entries = {**read_ledger(folder), _key(Path(entry["scene"])): entry}
        write_json(path, {**facts, "scenes": list(entries.values())})


def listed_before_marks(entry: Mapping[str, Any]) -> set[str]:
    """Return the names of files of an entry by a version that did not write its name into them."""
    if "files" in entry or "map" not in entry:
        return set()
    kinds = ("map", "confidence", "polygons", "objects", "ids", "picture")
    stem = Path(entry["map"]).stem
    names = {Path(entry[kind]).name for kind in kinds if kind in entry}
    return names | {f"{stem}.qml", f"{stem}_probabilities.tif"}


def choose_names(folder: Path, scenes: Sequence[Path]) -> list[str]:
    """Return a name for the map of each scene, without ending: its stem, behind folders where several are alike.

    A name once given stays with its scene, so that predicting some scenes again replaces their own maps only.
    """
    known = read_ledger(folder)
    owners = {Path(entry["map"]).stem: key for key, entry in known.items()}
    keys = [_key(scene) for scene in scenes]
    longest = max((len(Path(key).parts) for key in keys), default=0)
    # by how many folders: all of them, so that none of several alike goes by its stem alone
    wanted = [Counter(_name(key, num) for key in dict.fromkeys(keys)) for num in range(longest)]
    names = []
    for key in keys:
        if key in known:
            names.append(Path(known[key]["map"]).stem)
            continue
        alone = [_name(key, num) for num in range(longest) if wanted[num][_name(key, num)] == 1]
        alone.append(f"{_name(key, longest)}_{Path(key).suffix[1:]}")  # scene.tif beside scene.png
        name = next(each for each in alone if owners.get(each, key) == key)
        owners[name] = key
        names.append(name)
    return names


def _name(key: str, num_folders: int) -> str:
    path = Path(key)
    folders = path.parent.parts[1:]
    return "_".join((*folders[max(0, len(folders) - num_folders) :], path.stem))


def _key(scene: Path) -> str:
    return str(scene.resolve())


def file_beside(folder: Path, name: str) -> Path | None:
    """Return a file of the predictions of a folder, None where it is gone.

    It lies beside the ledger that names it: a run that was copied has maps of its own.
    """
    path = folder / Path(name).name
    return path if path.is_file() else None
