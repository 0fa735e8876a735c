# All tasks of the project. Needs python3 (3.11 or newer) with venv, make, and network access to PyPI.
#
#   make run                    start a broker on 127.0.0.1:9092, with its data in ./headrace-data
#   make demo                   a three-minute tour: log, queue, dead letters, archive, report page
#   make check                  style, types, layers, unit tests: about a minute
#   make test                   everything in check, and simulation, integration and client tests: what CI runs
#   make sim SEED=17 SEEDS=200  run SEEDS simulations, starting with seed SEED
#   make chaos MINUTES=30       kill, pause and partition a cluster of real processes; as root (docs/chaos.md)
#   make bench [queue] ARGS='…' compare Headrace with its peers on this machine; words after bench select workloads
#   make requirements           pin the newest versions of all dependencies
#   make clean                  remove build products and caches; keep data and results

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
# Install the package itself from its path; all other packages are verified by hash.
THIS := --no-deps --no-build-isolation --editable .

SEED ?= 1
SEEDS ?= 20
MINUTES ?= 5
ARGS ?=

.PHONY: run demo check test static sim chaos bench requirements clean
.DEFAULT_GOAL := check

run: $(VENV)/run.stamp
	$(BIN)/headrace serve

demo: $(VENV)/spark.stamp
	$(BIN)/python -m demo

check: static
	$(BIN)/pytest -q tests/unit

test: static
	$(BIN)/pytest

static: $(VENV)/dev.stamp
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

sim: $(VENV)/dev.stamp
	HEADRACE_SEED=$(SEED) HEADRACE_SEEDS=$(SEEDS) $(BIN)/pytest -q tests/simulation

chaos: $(VENV)/dev.stamp
	$(BIN)/python -m tests.chaos --minutes $(MINUTES) --seed $(SEED)

# The words after `bench` are names of workloads. Make must not try to build them as targets.
WORKLOADS := $(if $(filter bench,$(firstword $(MAKECMDGOALS))),$(filter-out bench,$(MAKECMDGOALS)))
ifneq ($(WORKLOADS),)
.PHONY: $(WORKLOADS)
$(WORKLOADS):
	@:
endif

bench: $(VENV)/dev.stamp
	$(BIN)/python -m bench $(WORKLOADS) $(ARGS)

COMPILE = $(BIN)/pip-compile --quiet --upgrade --generate-hashes --allow-unsafe --strip-extras --no-annotate \
	--no-header --no-emit-index-url --no-emit-trusted-host --no-emit-find-links

requirements: $(VENV)/dev.stamp
	$(COMPILE) requirements/run.in --output-file requirements/run.txt
	$(COMPILE) requirements/spark.in --output-file requirements/spark.txt
	$(COMPILE) requirements/dev.in --output-file requirements/dev.txt

clean:
	rm -rf $(VENV) build dist src/*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find src tests bench demo -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit("Headrace needs Python 3.11 or newer" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)

$(VENV)/run.stamp: requirements/run.txt pyproject.toml setup.py $(wildcard src/headrace/native/*.[ch]) | $(BIN)/python
	$(PIP) --require-hashes --requirement requirements/run.txt
	$(PIP) $(THIS)
	$(BIN)/python -m compileall -q src  # else every start recompiles where PYTHONDONTWRITEBYTECODE is set
	touch $@

# PyPI has PySpark only as a source package of half a gigabyte: the first installation takes minutes.
$(VENV)/spark.stamp: requirements/spark.txt $(VENV)/run.stamp
	$(PIP) --no-build-isolation --require-hashes --requirement requirements/spark.txt
	touch $@

$(VENV)/dev.stamp: requirements/dev.txt $(VENV)/spark.stamp
	$(PIP) --require-hashes --requirement requirements/dev.txt
	touch $@
