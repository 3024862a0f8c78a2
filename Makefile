# Everything from nothing: `make demo` and `make test` create .venv and install what they need.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: setup demo test test-all check fix test-gpu bench

setup: $(VENV)/.ready

$(VENV)/.ready: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	touch $@

demo: setup
	$(BIN)/outsize demo --out runs/demo

# a test has one core; those that need a GPU are left to test-gpu
test: setup
	$(BIN)/python -m pytest -n logical --maxprocesses 4 --dist worksteal

# with the long ones: combinations, mutations, kills and soaks
test-all: setup
	$(BIN)/python -m pytest -n logical --maxprocesses 4 --dist worksteal -m "long or not long"

check: setup
	$(BIN)/ruff check src tests benchmarks docs
	$(BIN)/ruff format --check src tests benchmarks docs
	$(BIN)/mypy
	$(BIN)/lint-imports

fix: setup
	$(BIN)/ruff check --fix src tests benchmarks docs
	$(BIN)/ruff format src tests benchmarks docs

# needs one GPU
test-gpu: setup
	$(BIN)/python -m pytest tests/gpu

# needs one GPU; on a CPU it runs a smaller scene
bench: setup
	$(BIN)/python benchmarks/scene_speed.py
