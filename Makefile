# Two commands on a fresh machine (Linux x86-64; Python >= 3.11, git, a C++ compiler, make):
#   make demo   sets up, then generates, checks and proposes an engine for a real model
#   make test   sets up, then runs the tests
# And, with lighttpd, and packages of others from npm and PyPI, which are kept in ~/.cache/metainfer:
#   make test-github   runs the tests against emulators of GitHub, and the workflows themselves
PYTHON ?= python3
VENV ?= .venv
# Installed first, and by exact version, so that every machine tests the same numerics. To choose another build of
# torch (CPU only, another CUDA), pass its requirement here: make demo TORCH="torch==2.13.0+cpu".
TORCH ?= torch==2.13.0
BIN := $(VENV)/bin

.DEFAULT_GOAL := help
.PHONY: help install install-github demo test test-slow test-github lint format clean

help:
	@grep -E '^#   make' Makefile | sed 's/^#   //'

install: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed; name it: make PYTHON=python3.12" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet '$(TORCH)'
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	@touch $@

demo: install
	$(BIN)/metainfer demo

test: install
	$(BIN)/python -m pytest

test-slow: install
	$(BIN)/python -m pytest -m slow

# Answers of the stub, which the tests of `make test` see as well, are held against GitHub's description of its API here.
test-github: install-github
	$(BIN)/python -m pytest -m github
	METAINFER_TEST_OPENAPI=1 $(BIN)/python -m pytest tests/github tests/review

install-github: install
	@command -v lighttpd >/dev/null || [ -x /usr/sbin/lighttpd ] || { echo 'lighttpd is needed: apt-get install lighttpd' >&2; exit 1; }
	$(BIN)/python -m pip install --quiet --editable '.[dev,github]'
	$(BIN)/python -m tests.github.tools

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: install
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) .demo .mypy_cache .pytest_cache .ruff_cache
