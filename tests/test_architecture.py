"""The shape of the source: order of rooms, sizes, names, and a test for every module."""

from __future__ import annotations

import ast
import functools
import importlib
import importlib.util
import re
import tomllib
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCE, TESTS = ROOT / "src" / "outsize", ROOT / "tests"
FILES = sorted(SOURCE.rglob("*.py"))
MAX_LINES, MAX_FUNCTION_LINES, MAX_PARAMETERS = 400, 60, 8
MAX_FILES, MAX_NAMES = 15, 8  # of a folder; that a room inside a room shows to others
MAX_VERB_LINES = 2500  # of all verbs together: they are lists of steps
TASK_NAMES = {"segment", "instances", "detect", "classify", "forecast"}
BANNED_NAMES = {"utils", "util", "helpers", "helper", "common", "base", "manager"}

# each parameter is one property of what is drawn, with a default; kernels take pointers and sizes one by one;
# a verb has the options that it has
MANY_PARAMETERS = {
    ("cli/bench.py", "fit"),
    ("cli/elsewhere.py", "launch"),
    ("cli/elsewhere.py", "pack"),
    ("cli/verbs.py", "plan"),
    ("cli/verbs.py", "predict"),
    ("cli/verbs.py", "train"),
    ("commands/predict.py", "predict"),
    ("data/synthetic/scenes.py", "draw_scene"),
    ("strategies/replicate/layers.py", "batch_norm_over_ranks"),
    ("strategies/spatial/layers.py", "_conv_transpose2d"),
}

# parts of one subject, tested through the whole of it
TESTED_THROUGH = {
    "cli.bench": "cli/test_cli.py",
    "cli.data": "cli/test_cli.py",
    "cli.results": "cli/test_cli.py",
    "cli.verbs": "cli/test_cli.py",
    "cli.elsewhere": "cli/test_cli.py",
    "planning.asking": "commands/elsewhere/test_launch.py",
    "packing.lists": "packing/test_archive.py",
    "packing.names": "packing/test_archive.py",
    "packing.unpack": "packing/test_archive.py",
    "planning.elsewhere": "commands/results/test_compare.py",
    "report.compared": "commands/results/test_compare.py",
    "report.tables": "commands/bench/test_batch.py",
    "bench.apart": "bench/test_batches.py",
    "commands.bench.setting": "commands/bench/test_memory.py",
    "job.acquire": "commands/data/test_acquire.py",
    "job.prepare": "commands/data/test_prepare.py",
    "data.raw.pieces": "data/raw/test_frames.py",
    "prepare.pixels": "prepare/test_scenes.py",
    "workflow.records": "workflow/test_running.py",
    "ranks.pulse": "ranks/test_joining.py",
    "session.among": "session/test_ranks.py",
    "session.stepping": "session/test_ranks.py",
    "strategies.pipeline.mesh": "session/test_staging.py",
    "strategies.pipeline.parts": "session/test_staging.py",
    "strategies.pipeline.draws": "strategies/pipeline/test_stepping.py",
    "strategies.pipeline.messages": "strategies/pipeline/test_stepping.py",
    "strategies.pipeline.rules": "strategies/pipeline/test_stepping.py",
    "strategies.pipeline.running": "strategies/pipeline/test_stepping.py",
    "strategies.pipeline.sending": "strategies/pipeline/test_stepping.py",
    "strategies.pipeline.shapes": "strategies/pipeline/test_stepping.py",
    "strategies.spatial.borders": "strategies/spatial/test_layers.py",
    "strategies.spatial.dry": "strategies/spatial/test_step.py",
    "strategies.spatial.trial": "strategies/spatial/test_step.py",
    "strategies.spatial.shard": "strategies/spatial/test_layers.py",
    "strategies.spatial.sliding": "strategies/spatial/test_layers.py",
    "strategies.spatial.whole": "strategies/spatial/test_layers.py",
    "tasks.segment.maps.fill": "tasks/segment/maps/test_scene.py",
    "session.fitting": "session/test_resuming.py",
    "session.samples": "commands/test_train_mix.py",
    "planning.jobs.shortage": "commands/test_train_planned.py",
    "tiles.constants": "measure/trying/test_sound_and_unsound.py",
    "tiles.local": "measure/trying/test_halo_of_ops.py",
    "tiles.places": "measure/trying/test_halo_of_ops.py",
    "tiles.pointwise": "measure/trying/test_halo_of_ops.py",
    "tiles.products": "measure/trying/test_sound_and_unsound.py",
    "tiles.rules": "measure/trying/test_halo_of_ops.py",
    "tiles.shapes": "measure/trying/test_sound_and_unsound.py",
    "tiles.sizes": "measure/trying/test_sound_and_unsound.py",
    "measure.trying.graphs": "measure/trying/test_sound_and_unsound.py",
    "tiles.passes.around": "tiles/passes/test_rules.py",
    "tiles.arguments": "tiles/passes/test_rules.py",
    "tiles.spans": "measure/trying/test_halo_of_ops.py",
    "tiles.walk": "measure/trying/test_halo_of_ops.py",
    "graph": "measure/graphs/test_exporting.py",
    "raster.gdal": "raster/reading/test_safety.py",
    "raster.labels.grid": "raster/labels/test_warp.py",
    "raster.labels.write": "raster/labels/test_warp.py",
    "raster.reading.info": "raster/reading/test_picture.py",
    "raster.reading.mosaic": "raster/reading/test_safety.py",
    "raster.vectors.regions": "raster/vectors/test_region_layers.py",
    "raster.vectors.rings": "raster/vectors/test_outlines.py",
    "raster.reading.scene": "raster/reading/test_read.py",
    "tasks.segment.chapter": "report/test_page.py",
    "report.sections.origins": "report/test_page.py",
    "tasks.segment.strips": "report/test_page.py",
    "data.checking.checked": "data/checking/test_check.py",
    "data.checking.telling": "commands/data/test_check.py",
    "data.formats.patterns": "data/formats/test_layout.py",
    "data.formats.boxed.idl_text": "data/formats/boxed/test_pictures.py",
    "data.formats.boxed.lines": "data/formats/boxed/test_kitti_text.py",
    "data.formats.boxed.voc_xml": "data/formats/boxed/test_pictures.py",
    "data.formats.boxed.yolo_text": "data/formats/boxed/test_pictures.py",
    "tasks.instances.compare": "tasks/instances/test_predict.py",
    "tasks.instances.evaluate": "tasks/instances/test_predict.py",
    "data.radar.frames": "data/radar/test_reading.py",
    "data.radar.geotiff": "data/radar/test_reading.py",
    "data.radar.hdf5": "data/radar/test_reading.py",
    "data.radar.netcdf": "data/radar/test_reading.py",
    "data.radar.odim": "data/radar/test_reading.py",
    "data.radar.store": "data/formats/test_radar.py",
    "data.radar.units": "data/radar/test_reading.py",
    "tasks.forecast.answers": "tasks/forecast/test_run.py",
    "tasks.forecast.chapter": "tasks/forecast/test_run.py",
    "tasks.forecast.colours": "tasks/forecast/test_run.py",
    "tasks.forecast.compare": "tasks/forecast/test_run.py",
    "tasks.forecast.evaluate": "tasks/forecast/test_run.py",
    "tasks.forecast.info": "tasks/test_tasks.py",
    "tasks.forecast.learning": "tasks/forecast/test_run.py",
    "tasks.forecast.predict": "tasks/forecast/test_run.py",
    "tasks.forecast.record": "tasks/forecast/test_run.py",
    "tasks.forecast.sheet": "tasks/forecast/test_run.py",
    "data.pictures.shuffled": "data/pictures/test_pictures.py",
    "tasks.classify.chapter": "tasks/classify/test_run.py",
    "tasks.classify.compare": "tasks/classify/test_run.py",
    "tasks.classify.evaluate": "tasks/classify/test_run.py",
    "tasks.classify.predict": "tasks/classify/test_run.py",
    "tasks.classify.record": "tasks/classify/test_run.py",
    "tasks.classify.info": "tasks/test_tasks.py",
    "tasks.windows": "commands/test_train_mix.py",
    "tasks.instances.info": "tasks/test_tasks.py",
    "tasks.segment.info": "tasks/test_tasks.py",
    "tasks.segment.logits": "commands/test_one_logit.py",
    "tasks.segment.maps.predict": "commands/test_verbs.py",
    "tasks.segment.scores.compare": "commands/results/test_evaluate_two.py",
    "tasks.segment.scores.evaluate": "commands/results/test_evaluate.py",
    "report.sections.side_by_side": "report/test_page.py",
    "report.sections.run": "report/test_page.py",
    "job.naming": "commands/test_bad_jobs.py",
    "planning.jobs.preparing": "commands/test_bad_jobs.py",
    "planning.jobs.planning": "commands/test_plan.py",
    "measure.tracing.lives": "measure/tracing/test_step.py",
    "strategies.find": "strategies/blocks/test_checkpointing.py",
    "strategies.kernels.launch": "strategies/kernels/test_layers.py",
    "strategies.kernels.norm.kernels": "strategies/kernels/test_layers.py",
    "strategies.kernels.pool.kernels": "strategies/kernels/test_layers.py",
    "strategies.kernels.entropy.kernels": "strategies/kernels/test_layers.py",
    "cli.across": "commands/test_predict_ranks.py",
    "infer.across": "commands/test_predict_ranks.py",
    "planning.traced": "planning/jobs/test_staging.py",
    "planning.clusters": "commands/test_plan.py",
    "report.sections.accounts": "report/test_page.py",
    "report.sections.tuning": "commands/test_tune.py",
    "tuning.outcome": "tuning/test_work.py",
    "tuning.trial": "tuning/test_work.py",
    "planning.telling": "commands/test_plan.py",
    "tasks.first_job": "commands/data/test_init.py",
    "tasks.to_predict": "commands/test_verbs.py",
    "train.prove.claims": "commands/results/test_verify.py",
    "train.prove.plan": "commands/results/test_verify.py",
    "planning.advice": "commands/test_plan.py",
    "files.append": "train/test_log.py",
    "strategies.overwritten": "strategies/saved/test_hooks.py",
    "strategies.swap.shuttle": "strategies/saved/test_moving.py",
}


@functools.cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def _name(path: Path, root: Path = SOURCE) -> str:
    return ".".join(path.relative_to(root).with_suffix("").parts)


def _functions(path: Path) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return [
        each for each in ast.walk(_tree(path)) if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)
    ]


def test_rooms_stand_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    from importlinter.cli import lint_imports

    monkeypatch.chdir(ROOT)
    assert lint_imports(config_filename=str(ROOT / "pyproject.toml"), no_cache=True, no_logo=True) == 0


def test_no_file_is_too_long() -> None:
    lengths = {_name(path): len(path.read_text(encoding="utf-8").splitlines()) for path in FILES}
    assert len(lengths) > 50
    assert {name: length for name, length in lengths.items() if length > MAX_LINES} == {}


def test_no_function_is_too_long() -> None:
    lengths = {
        f"{_name(path)}.{each.name}": (each.end_lineno or 0) - each.lineno + 1
        for path in FILES
        for each in _functions(path)
    }
    assert {name: length for name, length in lengths.items() if length > MAX_FUNCTION_LINES} == {}


def test_no_function_takes_too_much() -> None:
    crowded = set()
    for path in FILES:
        for each in _functions(path):
            if "triton.jit" in map(ast.unparse, each.decorator_list):
                continue  # a kernel has nothing but its arguments
            taken = each.args
            names = [arg.arg for arg in (*taken.posonlyargs, *taken.args, *taken.kwonlyargs)]
            if len([name for name in names if name not in ("self", "cls")]) > MAX_PARAMETERS:
                crowded.add((path.relative_to(SOURCE).as_posix(), each.name))
    assert crowded == MANY_PARAMETERS


def test_no_file_has_a_name_that_says_nothing() -> None:
    parts = {part for path in FILES for part in path.relative_to(SOURCE).with_suffix("").parts}
    assert parts & BANNED_NAMES == set()


def test_a_class_has_its_name_for_itself() -> None:
    places: dict[str, list[str]] = {}
    for path in FILES:
        for each in ast.walk(_tree(path)):
            if isinstance(each, ast.ClassDef):
                places.setdefault(each.name, []).append(_name(path))
    assert {name: files for name, files in places.items() if len(files) > 1} == {}


def test_no_folder_has_too_many_files() -> None:
    counts = Counter(path.parent.relative_to(SOURCE).as_posix() for path in FILES)
    assert {folder for folder, num in counts.items() if num > MAX_FILES} == set()


def test_verbs_are_verbs_only() -> None:
    lengths = [
        len(path.read_text(encoding="utf-8").splitlines()) for path in (SOURCE / "commands").rglob("*.py")
    ]
    assert sum(lengths) <= MAX_VERB_LINES


def test_nobody_asks_which_task_it_is() -> None:
    """Outside of tasks/ a name stands in the job file's room alone."""
    told = [
        (_name(path), each.lineno, each.value)
        for path in FILES
        if path.relative_to(SOURCE).parts[0] not in ("tasks", "job")
        for each in ast.walk(_tree(path))
        if isinstance(each, ast.Constant) and each.value in TASK_NAMES
    ]
    assert told == []
    asked = [
        (_name(path), each.lineno)
        for path in FILES
        if path.relative_to(SOURCE).parts[0] not in ("tasks", "job", "data")
        for each in ast.walk(_tree(path))
        if isinstance(each, ast.Attribute)
        and ast.unparse(each) in ("job.data.objects", "job.data.boxes", "job.data.pictures")
    ]
    assert asked == []  # what labels are is data's to know; above it the task says what follows from that


def test_every_room_inside_a_room_has_a_door() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
    (open_rooms,) = [set(each["open_rooms"]) for each in contracts if each["type"] == "doors"]
    doors = [path for path in FILES if path.stem == "__init__" and len(path.relative_to(SOURCE).parts) > 2]
    rooms = {f"outsize.{_name(door.parent)}": _tree(door) for door in doors}
    assert open_rooms < rooms.keys()
    for room in rooms.keys() - open_rooms:
        named = importlib.import_module(room).__all__
        assert 1 <= len(named) <= MAX_NAMES, (room, named)
        assert "\n" in (ast.get_docstring(rooms[room]) or ""), f"{room} draws or tells nothing of its inside"


def test_every_file_says_its_duty_in_its_first_line() -> None:
    for path in FILES:
        text = ast.get_docstring(_tree(path))
        assert text, path
        assert path.read_text(encoding="utf-8").startswith('"""'), path
        assert text.splitlines()[0].rstrip().endswith((".", ":")) or "\n\n" not in text, path


def test_nobody_swallows_everything() -> None:
    broad = []
    for path in FILES:
        for each in ast.walk(_tree(path)):
            if isinstance(each, ast.ExceptHandler):
                caught = ast.unparse(each.type) if each.type is not None else ""
                passed_on = any(isinstance(inner, ast.Raise) for inner in ast.walk(each))
                if caught in ("", "Exception", "BaseException") and not passed_on:
                    broad.append((_name(path), each.lineno))
    assert broad == []


def _imported_by_tests() -> set[str]:
    found: set[str] = set()
    for path in TESTS.rglob("*.py"):
        for each in ast.walk(_tree(path)):
            if isinstance(each, ast.Import):
                found.update(alias.name for alias in each.names)
            elif isinstance(each, ast.ImportFrom) and each.module:
                found.add(each.module)
                found.update(f"{each.module}.{alias.name}" for alias in each.names)
    return {name.removeprefix("outsize.") for name in found if name.startswith("outsize.")}


def test_every_module_has_a_test() -> None:
    modules = {_name(path) for path in FILES if path.stem != "__init__"}
    mirrors = {_name(path, TESTS).replace(".test_", ".") for path in TESTS.rglob("test_*.py")}
    assert TESTED_THROUGH.keys() <= modules - mirrors
    assert modules - mirrors - _imported_by_tests() - TESTED_THROUGH.keys() == set()
    for test in set(TESTED_THROUGH.values()):
        assert (TESTS / test).is_file(), test


def test_tests_lie_where_their_subject_does() -> None:
    rooms = {path.name for path in SOURCE.iterdir() if path.is_dir() and path.name != "__pycache__"}
    folders = {path.name for path in TESTS.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert folders - rooms == {"gpu", "fuzz"}
    assert rooms - folders == set()


def _rooms_page() -> ModuleType:
    spec = importlib.util.spec_from_file_location("rooms_page", ROOT / "docs" / "rooms_page.py")
    assert spec is not None
    assert spec.loader is not None
    page = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(page)
    return page


def test_drawings_of_rooms_are_true() -> None:
    rooms = _rooms_page()
    assert rooms.page() == rooms.PAGE.read_text(encoding="utf-8"), "run python docs/rooms_page.py"
    assert rooms.large_rooms() - rooms.drawn() == set()


def test_rooms_and_files_that_are_drawn_do_not_import_one_another_in_a_circle() -> None:
    assert "(cycle)" not in _rooms_page().page()


def test_every_file_that_design_names_as_an_answer_exists() -> None:
    section = (ROOT / "DESIGN.md").read_text(encoding="utf-8").partition("## Where is it?")[2]
    named = re.findall(r"`((?:[a-z_]+/)+(?:[a-z_]+\.py)?|[a-z_]+\.py)`", section.partition("\n## ")[0])
    alone = {"evaluate.py", "chapter.py"}  # one in each task
    assert len(named) > 100
    assert [each for each in named if each not in alone and not (SOURCE / each).exists()] == []
