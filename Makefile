# The commands that people, CI and pre-commit share. Everything is installed into .venv, with tested versions.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
STAMP := $(VENV)/.installed
CHECK_SECONDS ?= 40

.PHONY: demo test lint types check check-long bench test-gpu clean

demo: $(STAMP)
	$(BIN)/nanokv demo

test: $(STAMP)
	$(BIN)/python -m pytest -n auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy

check: $(STAMP)
	$(BIN)/nanokv check --all --seconds $(CHECK_SECONDS)

check-long: $(STAMP)
	$(BIN)/nanokv check --all --seconds 1800

bench: $(STAMP)
	$(BIN)/python -m bench

test-gpu: # PYTHON is the one that has the GPU build of torch: make test-gpu PYTHON=...
	$(PYTHON) -m tests.gpu --json bench/results/gpu.json

# torch first and by itself, in the tested version, so that no other package pulls a larger build
$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) install -q -c constraints.txt torch
	$(PIP) install -q -c constraints.txt -e '.[dev,demo]'
	touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info
