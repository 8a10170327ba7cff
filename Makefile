# `make` lists the targets. PYTHON=python3.12 make train picks another Python (3.11 or
# later), WORKERS=8 make test as many processes.
PYTHON ?= python3
WORKERS ?= 2
BIN := .venv/bin

.DEFAULT_GOAL := help
.PHONY: help install train test slow faults lint format docs benchmark clean

help:  ## list the targets
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

install: .venv/installed  ## make .venv and install the pinned dependencies

.venv/installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "nws needs Python 3.11 or later, found " + sys.version.split()[0] + "; try: make PYTHON=python3.11")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

train: .venv/installed  ## train on the embedded default (handwritten digits, under a minute) and say where the run is
	$(BIN)/python train.py

test: .venv/installed lint  ## lint, type-check and test, on a simulated GPU too
	$(BIN)/python -m pytest -m "not slow" -n $(WORKERS) --dist worksteal

slow: .venv/installed  ## kills, launchers, several processes, the site and the wheel
	$(BIN)/python -m pytest -m slow

faults: .venv/installed  ## hundreds of kills and bad inputs with a fresh seed (NWS_FAULTS_SEED repeats one); an hour
	$(BIN)/python -m pytest tests/faults --faults-long -s

lint: .venv/installed  ## ruff (lint and format) and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: .venv/installed  ## let ruff mend what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: .venv/installed  ## build the documentation into site/ (open site/index.html)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

benchmark: .venv/installed  ## time one training step
	$(BIN)/python scripts/benchmark.py step

clean:  ## remove .venv, site/ and caches; runs and data stay
	rm -rf .venv site .pytest_cache .mypy_cache .ruff_cache *.egg-info
