# Everything that this repository can do, as one-word commands. Each makes .venv and installs the tested set of packages
# (constraints.txt) when pyproject.toml or constraints.txt is newer than the last installation.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

PYTHON ?= python3
WORKERS ?= 2
SEEDS ?= 500
FROM ?= 0
ONLY ?=
PYTEST_ARGS ?=
DEMO_ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -qq
space := $(subst ,, )
ROOMS := protocol compression optim coordinator peer

# What the machine can run beside the plain tests: network namespaces need root, the docker tests an engine that answers.
DOCKER = $(shell docker info >/dev/null 2>&1 && echo yes)
NETWORK = $(shell test "$$(id -u)" = 0 && command -v ip >/dev/null 2>&1 && echo yes)
EVERYTHING = not soak$(if $(DOCKER),, and not docker)$(if $(NETWORK),, and not network)

.PHONY: help demo test check lint types format bench soak proto docs clean

help: ## list these commands
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /  make \1\t/' | expand -t 18

demo: $(VENV)/.runtime ## train a small model with a whole swarm on this machine
	$(BIN)/shoal demo $(DEMO_ARGS)

check: lint types ## format, lint, types and the fast tests: what every commit passes
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup $(PYTEST_ARGS)

test: $(VENV)/.dev ## every test that can run on this machine
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup -m "$(EVERYTHING)" $(PYTEST_ARGS)

lint: $(VENV)/.dev ## formatting and ruff's rules
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(VENV)/.dev .mypy_src ## strict mypy over the rooms, a laxer one over the tests
	set -o pipefail; $(BIN)/mypy -p shoal | sed -E -e 's#^\.mypy_src/shoal/(($(subst $(space),|,$(ROOMS)))/)#\1#' -e 's#^\.mypy_src/##'
	$(BIN)/mypy --config-file tests/mypy.ini tests docs/generate.py

format: $(VENV)/.dev ## rewrite the sources as `make lint` wants them
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(VENV)/.dev ## run the benchmarks (ONLY=name for one), write .bench/results.json
	$(BIN)/python -m tests.benchmarks $(ONLY)

soak: $(VENV)/.dev ## many simulated runs on a virtual clock (SEEDS=500 FROM=0)
	$(BIN)/python -m tests.simulation --seeds $(SEEDS) --from $(FROM) --processes $(WORKERS)

proto: $(VENV)/.dev ## regenerate protocol/generated from the .proto files
	$(BIN)/python -m shoal.protocol.generate

docs: $(VENV)/.dev ## regenerate the reference pages that are made from the sources
	$(BIN)/python docs/generate.py

clean: ## remove everything that is not in the repository but the benchmark results
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .mypy_src .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "shoal needs Python 3.11 or newer; name one: make PYTHON=python3.12 ..." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.runtime: pyproject.toml constraints.txt | $(BIN)/python
	@echo 'installing PyTorch and others into $(VENV): a few minutes, 1 to several GB'
	$(PIP) install -c constraints.txt -e .
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(BIN)/python
	@echo 'installing PyTorch and others into $(VENV): a few minutes, 1 to several GB'
	$(PIP) install -c constraints.txt -e '.[dev]'
	@touch $@ $(VENV)/.runtime

# mypy cannot see through the editable install (the package `shoal` lies in several folders), so it reads a tree of links that looks
# like the installed package. Brought up to date every time: it costs nothing, and a new file in shoal/ must not be missed.
.PHONY: .mypy_src
.mypy_src:
	@mkdir -p $@/shoal && cd $@/shoal && \
	for file in ../../shoal/*; do [[ $$file == *__pycache__ ]] || ln -sfn "$$file" .; done && \
	for room in $(ROOMS); do ln -sfn ../../$$room $$room; done && \
	find . -type l ! -exec test -e {} \; -delete
