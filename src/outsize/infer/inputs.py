"""What `predict` is given: images, folders of images, and scenes of one file per band."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from outsize.errors import DataError, explain
from outsize.job import DataSection
from outsize.runs import RunFolder, as_written, read_json

if TYPE_CHECKING:
    from outsize.raster.reading import SceneInfo

_SUFFIXES = (".tif", ".tiff", ".jpg", ".jpeg", ".png", ".jp2", ".vrt")


def open_inputs(
    images: Sequence[Path], stacks: Sequence[str], data: DataSection, bands: Sequence[str], cache: Path
) -> list[SceneInfo]:
    """Describe all scenes: files, those in folders, and those of `--bands`; `bands` are what the model expects.

    Frames that follow one another are one scene, which is made in `cache`.
    """
    from outsize.data.scenes import open_image

    if data.numbers and not all(path.suffix == ".vrt" for path in images):
        from outsize.data.radar import newest_frames

        return [newest_frames(images, data.frames, cache)]

    found = [open_image(path, data) for path in expand(images, data)]
    return found + [open_stack(text, bands, data) for text in stacks]


def expand(images: Sequence[Path], data: DataSection) -> list[Path]:
    """Return the images, and for each folder those in it; where a scene is a folder of bands it stays one."""
    found: list[Path] = []
    for path in images:
        if data.stack or not path.is_dir():
            found.append(path)
            continue
        inside = [each for each in sorted(path.iterdir()) if _is_image(each)]
        if not inside:
            num = sum(1 for _ in path.iterdir())
            what = f"{num} other files" if num else "an empty folder"
            need, remedy = f"images ({', '.join(_SUFFIXES)})", "check the path"
            raise DataError(explain(f"no image in {path}", what, need, remedy))
        found += inside
    return found


def open_stack(text: str, bands: Sequence[str], data: DataSection) -> SceneInfo:
    """Describe the scene of a list of files, one for each band: in the order of the model's, or as NAME=FILE."""
    from outsize.raster.reading import stack_bands

    parts = [part.strip() for part in text.split(",") if part.strip()]
    named = {name: Path(file) for name, equals, file in (part.partition("=") for part in parts) if equals}
    if named and set(named) == set(bands) and len(parts) == len(bands):
        files = {name: named[name] for name in bands}
    elif len(parts) == len(bands) and not any(name in bands for name in named):
        names = [name or f"band {number}" for number, name in enumerate(bands, start=1)]
        files = dict(zip(names, map(Path, parts), strict=True))
        _refuse_swapped(files, data)
    else:
        found = f"{len(parts)} files: {', '.join(parts)}"
        need = f"{len(bands)}: {', '.join(name or 'unnamed' for name in bands)}"
        remedy = "give a file for each band, in this order, or each as NAME=FILE"
        raise DataError(explain("--bands does not give the bands of the model", found, need, remedy))
    return stack_bands(next(iter(files.values())), files, allow_references=data.allow_references)


def bands_of(run: RunFolder) -> tuple[str, ...]:
    """Return the bands that a run's model expects, as its card says."""
    path = run.best.with_suffix(".json")
    card = read_json(path, "train")
    with as_written(path, "train"):
        if not all(isinstance(name, str) for name in card["bands"]):
            raise TypeError("bands without names")
        return tuple(card["bands"])


def _refuse_swapped(files: dict[str, Path], data: DataSection) -> None:
    """Refuse a file that says it is another of the bands than the one at its place."""
    from outsize.raster.reading import describe

    for name, file in files.items():
        own = describe(file, allow_references=data.allow_references).band_names[0]
        if own != name and own in files:
            need, remedy = f"band {name}", "put the files into the order of the bands, or give NAME=FILE"
            raise DataError(explain(f"{file} is another band than --bands says", repr(own), need, remedy))


def _is_image(path: Path) -> bool:
    return path.suffix.lower() in _SUFFIXES and not path.name.startswith(".") and path.is_file()
