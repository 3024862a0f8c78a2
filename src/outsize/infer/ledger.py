"""predict.json: which map belongs to which scene, over all calls that wrote into one folder."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from outsize.runs import read_json, write_json

LEDGER = "predict.json"


def read_ledger(folder: Path) -> dict[str, dict[str, Any]]:
    """Return what was predicted into a folder, by the resolved path of the scene."""
    path = folder / LEDGER
    if not path.is_file():
        return {}
    return {_key(Path(entry["scene"])): entry for entry in read_json(path, "predict")["scenes"]}


def write_ledger(folder: Path, entries: Mapping[str, dict[str, Any]], facts: Mapping[str, Any]) -> None:
    """Write all entries, the earlier ones and those of this call."""
    write_json(folder / LEDGER, {**facts, "scenes": list(entries.values())})


def choose_names(folder: Path, scenes: Sequence[Path]) -> list[str]:
    """Return a name for the map of each scene, without ending: its stem, behind folders where several are alike.

    A name once given stays with its scene, so that predicting some scenes anew replaces their own maps only.
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
