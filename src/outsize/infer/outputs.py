"""Whose the results of a prediction are: files of others are not written over, and one process at a time makes them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from outsize.errors import OutputError, explain
from outsize.files.locks import holding, refuse_held
from outsize.files.ownership import NONE_GIVEN, Consent, is_marked, refuse_others
from outsize.infer.ledger import Ledger, listed_before_marks, read_ledger
from outsize.raster import disk
from outsize.runs import RunFolder, leaving_no_empty_folder

_REMEDY = "move it, choose another place (--out), or add --overwrite (overwrite=True)"


@contextmanager
def taking(
    paths: Sequence[Path],
    scene: Path,
    consent: Consent = NONE_GIVEN,
    tell: Callable[[str], object] = lambda _: None,
) -> Iterator[None]:
    """Hold the results of one scene alone while the block makes them, if they are ours to make."""
    with ExitStack() as stack:
        for lock in _locks_of(paths):
            stack.enter_context(leaving_no_empty_folder(lock.parent))
            disk.make_folder(lock.parent)
            with disk.disk_errors(lock):
                held = holding(lock, str(paths[0]), "predict", take_over=consent.take_over, tell=tell)
                stack.enter_context(held)
        refuse_to_take(paths, scene, consent)
        yield


def refuse_to_take(
    paths: Sequence[Path], scene: Path | None, consent: Consent = NONE_GIVEN, known: Ledger | None = None
) -> None:
    """Refuse results that are being made, or in the place of files that outsize did not make, or made of another scene.

    `known` is the ledger of their folder, for one who has read it; `scene` is None for results that grow by any scene.
    """
    for lock in _locks_of(paths):
        refuse_held(lock, str(paths[0]))
    if consent.overwrite:
        return
    folder = paths[0].parent
    known = read_ledger(folder) if known is None else known
    if scene is None and any(Path(entry["map"]).name == paths[0].name for entry in known.values()):
        return
    own = "" if scene is None else str(scene.resolve())
    for key, entry in known.items():
        if key != own and Path(entry["map"]).name == paths[0].name:
            need, remedy = "a result of the same scene", "choose another name, or add --overwrite"
            raise OutputError(explain(f"{paths[0]} would be written over", f"the map of {key}", need, remedy))
    if folder.name == RunFolder(folder).predictions.name and is_marked(folder.parent):
        return  # the run's own folder
    listed = listed_before_marks(known.get(own, {}))
    refuse_others([path for path in paths if path.parent != folder or path.name not in listed], _REMEDY)


def _locks_of(paths: Sequence[Path]) -> list[Path]:
    """Return a lock beside the first of the files, and one in every other folder that any of them goes to."""
    first = paths[0]
    folders = dict.fromkeys((first.parent.resolve(), *(path.parent.resolve() for path in paths)))
    return [folder / f".{first.stem}.outsize.lock" for folder in folders]
