"""predict.json: which map belongs to which scene, over all calls that wrote into one folder."""

from __future__ import annotations

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
    """Return a name for the map of each scene, without ending: its stem, with folders before it where two are alike.

    A name once given stays with its scene, so that predicting some scenes anew replaces their own maps only.
    """
    known = read_ledger(folder)
    owners = {Path(entry["map"]).stem: key for key, entry in known.items()}
    names = []
    for scene in scenes:
        key = _key(scene)
        if key in known:
            names.append(Path(known[key]["map"]).stem)
            continue
        parts = [*scene.resolve().parent.parts[1:], scene.stem]
        candidates = ("_".join(parts[-num_parts:]) for num_parts in range(1, len(parts) + 1))
        name = next(each for each in candidates if owners.get(each, key) == key)
        owners[name] = key
        names.append(name)
    return names


def _key(scene: Path) -> str:
    return str(scene.resolve())
