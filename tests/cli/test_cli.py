"""The command line: quick help, one line for a mistake, JSON lines for programs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import outsize
from outsize import cli
from outsize.cli import options
from outsize.errors import DataError, VerifyError
from outsize.stopping import Stopped

VERBS = (
    "doctor",
    "info",
    "demo",
    "plan",
    "train",
    "predict",
    "evaluate",
    "verify",
    "report",
    "init",
    "check",
    "compare",
    "acquire",
    "prepare",
    "run",
    "launch",
    "pack",
    "unpack",
    "tune",
)
# what makes a start slow: without them help is there in half a second on a machine that is not busy
HEAVY = (
    "torch",
    "rasterio",
    "matplotlib",
    "numpy",
    "scipy",
    "shapely",
    "pyogrio",
    "pyproj",
    "PIL",
    "safetensors",
)
_HELP = """
import sys
from outsize.cli import main
sys.argv = ["outsize", *{arguments}]
try:
    main()
except SystemExit as end:
    code = end.code
print("code", code, "loaded", [name for name in {heavy} if name in sys.modules])
"""


def _run(*arguments: str) -> Result:
    return CliRunner().invoke(cli.app, arguments)


@pytest.mark.parametrize(
    "arguments", [("--help",), ("--version",), ("train", "--help"), ("bench", "memory", "--help")]
)
def test_help_and_version_load_no_heavy_library(arguments: tuple[str, ...]) -> None:
    code = _HELP.format(arguments=arguments, heavy=HEAVY)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "code 0 loaded []"
    assert "Usage" in done.stdout or arguments == ("--version",)


def test_it_runs_as_a_module() -> None:
    from outsize import __main__  # as processes that prepare batches do: nothing happens

    assert __main__.main is cli.main
    command = [sys.executable, "-m", "outsize", "--version"]
    assert subprocess.run(command, check=True, capture_output=True, text=True).stdout.startswith("outsize ")


def test_version() -> None:
    result = _run("--version")
    assert result.exit_code == 0
    assert result.output == f"outsize {outsize.__version__}\n"


def test_the_version_is_that_of_the_package() -> None:
    from importlib.metadata import version

    assert outsize.__version__ == version("outsize")


def test_every_verb_has_help() -> None:
    names = [each.name or each.callback.__name__ for each in cli.app.registered_commands]  # type: ignore[union-attr]
    assert sorted(names) == sorted(VERBS)
    overview = _run("--help").output
    for command in cli.app.registered_commands:
        assert command.callback is not None
        name, text = command.callback.__name__, command.callback.__doc__
        assert text, name
        result = _run(name, "--help")
        assert result.exit_code == 0
        assert text.split(":")[0].split(",")[0][:40] in " ".join(result.output.split())
        assert name in overview


def test_no_arguments_show_the_help() -> None:
    assert "Usage" in _run().output


def test_doctor_names_what_is_here() -> None:
    result = _run("doctor")
    assert result.exit_code == 0
    (line,) = result.output.splitlines()
    facts = json.loads(line)
    assert facts["event"] == "doctor"
    assert facts["outsize"] == outsize.__version__
    for name in ("python", "torch build", "GPU", "GDAL", "host memory", "rasterio"):
        assert facts[name]
        assert name in facts["text"]
        assert "missing" not in facts[name]


def test_info_of_a_run(trained_run: Path) -> None:
    (line,) = _run("info", str(trained_run)).output.splitlines()
    facts = json.loads(line)
    assert facts["run"] == str(trained_run)
    assert facts["classes"].startswith("field, forest")
    assert facts["bands"] == "blue, green, red, nir"
    assert facts["training"] == "epoch 2, step 8"
    assert "mean IoU" in facts["best weights"]
    assert "plan, train" in facts
    assert "plan, predict" in facts


def test_a_program_gets_json_lines_and_quiet_gets_nothing(job_path: Path) -> None:
    result = _run("plan", str(job_path), "--device", "cpu")
    assert result.exit_code == 0, result.output
    events = [json.loads(line) for line in result.output.splitlines()]
    assert {"plan", "written"} <= {each["event"] for each in events}
    plans = [each for each in events if each["event"] == "plan"]
    assert [each["purpose"] for each in plans] == ["train", "predict"]
    assert all(each["why"] for each in plans)
    quiet = _run("plan", str(job_path), "--device", "cpu", "--quiet")
    assert quiet.exit_code == 0
    assert quiet.output == ""


def test_a_terminal_gets_text(
    trained_run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    reporter = options.make_reporter(quiet=False)
    assert reporter.style == "bar"
    assert options.make_reporter(quiet=True).style == "quiet"
    reporter.say("info", "a line for people", number=3)
    assert capsys.readouterr().out == "a line for people\n"


def _main(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["outsize", *arguments])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    return int(caught.value.code or 0)


@pytest.mark.parametrize(("error", "code"), [(DataError("a.tif is broken"), 2), (VerifyError("no"), 1)])
def test_a_mistake_is_one_line_and_its_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Exception, code: int
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("outsize.commands.results.info", fail)
    assert _main(monkeypatch, "info", "somewhere") == code
    streams = capsys.readouterr()
    assert streams.out == ""
    assert streams.err == f"outsize: {error}\n"


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_stopped_verb_exits_as_by_its_signal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], signum: signal.Signals
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        signal.raise_signal(signum)

    monkeypatch.setattr("outsize.commands.results.info", interrupt)
    assert _main(monkeypatch, "info", "some where") == 128 + signum
    streams = capsys.readouterr()
    assert streams.out == ""
    told = "nothing to save; to start again: outsize info 'some where'"
    assert streams.err == f"outsize: stopped by {signum.name}, {told}\n"


def test_no_run_at_a_place_without_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert _main(monkeypatch, "info", str(tmp_path)) == 2
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("said", ["PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"])
def test_gpu_memory_may_grow_unless_somebody_said_otherwise(
    said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(said, "max_split_size_mb:64")
    cli._let_memory_grow()
    assert os.environ.get(said) == "max_split_size_mb:64"
    assert said == "PYTORCH_ALLOC_CONF" or "PYTORCH_ALLOC_CONF" not in os.environ
    monkeypatch.delenv(said)
    cli._let_memory_grow()
    assert os.environ["PYTORCH_ALLOC_CONF"] == "expandable_segments:True"
    monkeypatch.delenv("PYTORCH_ALLOC_CONF")


@pytest.mark.parametrize("is_saved", [True, False])
@pytest.mark.parametrize("options", [(), ("--overwrite",), ("--resume",)])
def test_a_stopped_training_says_how_to_go_on(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: tuple[str, ...],
    is_saved: bool,
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        try:
            signal.raise_signal(signal.SIGTERM)
        except Stopped as stopped:
            stopped.is_saved, stopped.kept = is_saved, "saved at step 7" if is_saved else ""
            raise

    monkeypatch.setattr("outsize.commands.train.train", interrupt)
    assert _main(monkeypatch, "train", *options, "job.toml") == 143
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("outsize: stopped by SIGTERM, ")
    if is_saved:
        assert line.endswith("saved at step 7; to continue: outsize train job.toml --resume")
    else:
        assert line.endswith(
            f"nothing to save; to start again: {' '.join(('outsize', 'train', *options, 'job.toml'))}"
        )


@pytest.mark.parametrize("words", [(), ("train",), ("bench",), ("bench", "memory")])
def test_flags_are_shown_without_a_value(words: tuple[str, ...]) -> None:
    shown = _run(*words, "--help").output
    assert "--help" in shown
    assert "bool" not in shown.lower()
