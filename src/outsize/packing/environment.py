"""What a job needs to run elsewhere: versions of all libraries, outsize itself as a wheel, files for containers."""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import io
import platform
import re
import zipfile
from importlib import metadata
from pathlib import Path

from outsize.packing.names import LOCK

_OURS = "outsize"
_EXTRAS = ("gpu", "coco")
_TIME = (1980, 1, 1, 0, 0, 0)  # of all files in the wheel: the same code makes the same bytes


def locked() -> list[str]:
    """Return NAME==VERSION of every library that outsize stands on, as installed here, for pip to install again.

    A build for one kind of device (2.11.0+cpu) is named without it: the machine that the job goes to has its own.
    """
    found: dict[str, str] = {}
    waiting = [(_OURS, frozenset(_EXTRAS))]
    while waiting:
        name, wanted = waiting.pop()
        for text in metadata.requires(name) or ():
            needed, inner = _needed(text, wanted)
            if needed is None or needed in found:
                continue
            try:
                version = metadata.version(needed)
            except metadata.PackageNotFoundError:  # an extra that is not installed, or of another system
                continue
            found[needed] = version.partition("+")[0]
            waiting.append((needed, inner))
    return [f"{name}=={version}" for name, version in sorted(found.items())]


def _needed(text: str, extras: frozenset[str]) -> tuple[str | None, frozenset[str]]:
    """Return the name in a requirement and the extras it asks for; no name where it is for an extra not wanted."""
    from packaging.requirements import Requirement

    asked = Requirement(text)
    holds = asked.marker is None or any(asked.marker.evaluate({"extra": each}) for each in ("", *extras))
    return (re.sub(r"[-_.]+", "-", asked.name).lower() if holds else None), frozenset(asked.extras)


def lock_text() -> str:
    """Return the file that pip installs all libraries from."""
    head = f"# packed on Python {platform.python_version()}: pip install -r {LOCK} {wheel_name()}"
    return "\n".join([head, *locked(), ""])


def wheel_name() -> str:
    """Return the name of outsize's own wheel."""
    return f"{_OURS}-{metadata.version(_OURS)}-py3-none-any.whl"


def make_wheel() -> bytes:
    """Return outsize as it runs here as a wheel: a version that was never published must go with its job."""
    spec = importlib.util.find_spec(_OURS)
    assert spec is not None
    assert spec.submodule_search_locations
    source = Path(spec.submodule_search_locations[0])
    about = f"{_OURS}-{metadata.version(_OURS)}.dist-info"
    files = {
        f"{_OURS}/{path.relative_to(source).as_posix()}": path.read_bytes()
        for path in sorted(source.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts and not path.name.startswith(".")
    }
    distribution = metadata.distribution(_OURS)
    files[f"{about}/METADATA"] = (distribution.read_text("METADATA") or "").encode()
    files[f"{about}/entry_points.txt"] = f"[console_scripts]\n{_OURS} = {_OURS}.cli:main\n".encode()
    tags = "Wheel-Version: 1.0\nGenerator: outsize pack\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    files[f"{about}/WHEEL"] = tags.encode()
    lines = [f"{name},sha256={_digest(data)},{len(data)}" for name, data in files.items()]
    files[f"{about}/RECORD"] = "\n".join([*lines, f"{about}/RECORD,,", ""]).encode()
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(zipfile.ZipInfo(name, _TIME), data, zipfile.ZIP_DEFLATED)
    return made.getvalue()


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")


def dockerfile() -> str:
    """Return a Dockerfile of the job's folder; data that does not come along is mounted at its place."""
    python = ".".join(platform.python_version_tuple()[:2])
    return f"""# docker build -t NAME . && docker run --rm --gpus all --ipc host -v "$PWD:$PWD" -w "$PWD" NAME
# the folder is mounted where it lies, for the job names it so; mount the data likewise (-v DATA:DATA)
FROM python:{python}-slim
COPY {LOCK} {wheel_name()} /pack/
RUN pip install --no-cache-dir -r /pack/{LOCK} /pack/{wheel_name()} && rm -r /pack
ENTRYPOINT ["outsize"]
CMD ["train", "job.toml", "--resume"]
"""


def apptainer() -> str:
    """Return the same for Apptainer, which clusters have."""
    python = ".".join(platform.python_version_tuple()[:2])
    return f"""# apptainer build outsize.sif apptainer.def
# apptainer run --nv --bind "$PWD" outsize.sif train job.toml --resume
Bootstrap: docker
From: python:{python}-slim

%files
    {LOCK} /pack/{LOCK}
    {wheel_name()} /pack/{wheel_name()}

%post
    pip install --no-cache-dir -r /pack/{LOCK} /pack/{wheel_name()}
    rm -r /pack

%runscript
    exec outsize "$@"
"""
