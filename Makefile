# `make demo` and `make test` are all a newcomer needs: both create .venv on first use.
PYTHON ?= python3
BIN := .venv/bin
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_CONSTRAINT := $(CURDIR)/constraints.txt

.PHONY: help demo test test-slow test-wheel dist check bench docs clean

help:
	@echo "make demo       fit the built-in data privately: what survives of the accuracy, guarantee, model"
	@echo "make test       the test suite (a few minutes)"
	@echo "make test-slow  long statistics as well"
	@echo "make test-wheel the wheel, installed into an empty environment"
	@echo "make dist       source and wheel in dist/, checked"
	@echo "make check      ruff and mypy"
	@echo "make bench      timings and memory as ratios, against plain PyTorch and Opacus"
	@echo "make docs       the documentation site, in build/site"

# One stamp per set of extras, so that a target installs only what it needs and only when pyproject.toml changed.
.venv/stamp-%: pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --editable ".[$*]"
	@touch $@

demo: .venv/stamp-demo
	$(BIN)/diff2 demo --out diff2-demo

# Bytecode is kept whatever the environment says: rewriting all tests takes every worker seconds. Neighbouring tests stay
# in one worker, so that what they share is made once.
test: .venv/stamp-dev
	OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n 2 --dist worksteal

test-slow: .venv/stamp-dev
	OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n 2 --dist worksteal -m "slow or not slow"

test-wheel: .venv/stamp-dev
	$(BIN)/python -m pytest -m slow tests/test_wheel.py

dist:
	rm -rf dist
	$(PYTHON) -m venv .venv-dist
	.venv-dist/bin/python -m pip install --quiet build twine
	.venv-dist/bin/python -m build --outdir dist
	.venv-dist/bin/python -m twine check --strict dist/*
	rm -rf .venv-dist build

check: .venv/stamp-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: .venv/stamp-bench
	$(BIN)/python -m benchmarks

docs: .venv/stamp-docs
	$(BIN)/python -m tools.docs

clean:
	rm -rf .venv build dist diff2-demo
