"""Writes and reads measurements; the schema is that of the values, and its version is in every file."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from outsize.errors import RunError, explain
from outsize.measurement.values import Measurement
from outsize.runs import as_written, read_json, write_json

VERSION = 1


def schema() -> dict[str, Any]:
    """Return the JSON schema of a file."""
    tree = _adapter().json_schema()
    tree["properties"] = {"schema": {"const": VERSION}, **tree["properties"]}
    tree["required"] = ["schema", *tree["required"]]
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **tree}


def write_measurement(path: Path, measured: Measurement) -> None:
    """Write a measurement whole or not at all."""
    write_json(path, {"schema": VERSION, **measured.as_dict()})


def read_measurement(path: Path) -> Measurement:
    """Read a measurement of this version or an older one; a newer or broken one is refused in one line."""
    tree = read_json(path, "bench")
    version = tree.get("schema", 0)
    if not isinstance(version, int) or version > VERSION:
        need, remedy = f"version {VERSION} or older", "read it with the outsize that wrote it, or a newer one"
        raise RunError(explain(f"{path} has a newer schema of measurements", repr(version), need, remedy))
    with as_written(path, "bench"):
        return _parsed(tree if version else _from_before(tree))


def _parsed(tree: dict[str, Any]) -> Measurement:
    try:
        return _adapter().validate_python(tree)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise ValueError(f"{place}: {first['msg']}") from error


def _from_before(tree: dict[str, Any]) -> dict[str, Any]:
    """Return a memory.json of before there was a schema in the form of version 1."""
    if tree["kind"] != "memory":
        raise ValueError(f"no schema, and of kind {tree['kind']!r}")
    known = ("kind", "command", "folder", "when", "versions", "rows")
    machine, setting = tree["machine"], tree["setting"]
    is_cpu = machine["device"] == "cpu"
    return {
        **{name: tree[name] for name in known if name in tree},
        "machine": {
            "device": machine["device"],
            "cpu": machine["name"] if is_cpu else "",
            "num_cores": machine.get("num_cores", 0),
            "host_bytes": machine.get("host_free_bytes", 0),
            "gpu": None if is_cpu else machine["name"],
            "gpu_bytes": None if is_cpu else machine.get("memory_bytes"),
            "num_gpus": 0 if is_cpu else 1,
        },
        "job": setting,
        "about": {name: value for name, value in tree.items() if name not in (*known, "machine", "setting")},
    }


@cache
def _adapter() -> TypeAdapter[Measurement]:
    return TypeAdapter(Measurement)
