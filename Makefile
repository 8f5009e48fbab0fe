# Everything happens inside this checkout: the environment is .venv, made from the exact versions in requirements/.
# A target does nothing it has done before: stamps in .venv/.stamps say what is up to date.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMPS := $(VENV)/.stamps
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input
RUST_SOURCES := $(shell find crates -name target -prune -o \( -name '*.rs' -o -name Cargo.toml \) -print 2>/dev/null)
TEST_ARGS ?=
AGAIN ?=
BENCH_ARGS ?= all --quick --against ppe
GATE_ARGS ?= --base main --head HEAD
# Longer than any run of the Rust tests, so that one that hangs ends the build.
RUST_TESTS_TIMEOUT_S := 1500

unless_unchanged = $(BIN)/python tools/unchanged.py --record $(STAMPS)/$(1).json $(if $(AGAIN),--again)

.PHONY: help demo test test-rust test-python bench gate docs lint lock clean build

help: ## Show the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

demo: $(STAMPS)/native ## Start four engines, run a map, print its result and timing
	@$(BIN)/python examples/demo.py

test: test-rust test-python ## All tests, unless they have passed on the same files; AGAIN=1 runs them all the same

test-rust: $(STAMPS)/native
	@$(call unless_unchanged,rust-tests) --inputs crates Cargo.toml Cargo.lock -- \
	  timeout $(RUST_TESTS_TIMEOUT_S) cargo test --release --locked --quiet --workspace --exclude broadleaf-python

test-python: $(STAMPS)/native $(STAMPS)/test
	@$(call unless_unchanged,python-tests) -- $(abspath $(BIN))/python -m pytest tests $(TEST_ARGS)

bench: $(STAMPS)/native $(STAMPS)/bench ## Run the benchmarks; BENCH_ARGS="latency --against ppe,ray" chooses
	$(BIN)/python -m broadleaf.bench $(BENCH_ARGS)

gate: $(STAMPS)/native ## Is HEAD slower than main, here? GATE_ARGS="--base v0.2 --budget 10m" chooses
	@$(BIN)/broadleaf lab gate --study studies/gate $(GATE_ARGS)

docs: $(STAMPS)/native $(STAMPS)/docs ## Build the documentation into docs/_build/html
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs docs/_build/html
	@echo "docs/_build/html/index.html"

lint: $(STAMPS)/native $(STAMPS)/lint ## Formatting, ruff, mypy, pyright, clippy
	$(BIN)/ruff check python tests tools examples docs
	$(BIN)/ruff format --check python tests tools examples docs
	$(BIN)/mypy
	$(BIN)/pyright
	cargo fmt --all --check
	cargo clippy --release --locked --workspace --all-targets -- -D warnings

build: $(STAMPS)/native ## Build the native module and install the package into .venv

lock: $(STAMPS)/venv ## Renew requirements/*.txt (needs the network)
	$(BIN)/python tools/lock.py

clean: ## Remove everything the targets made
	rm -rf $(VENV) .bench-venvs target docs/_build bench-results .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find python tests tools examples -name __pycache__ -prune -exec rm -rf {} +
	rm -f python/broadleaf/_native*.so

$(STAMPS)/venv:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Broadleaf needs Python 3.11 or newer")'
	$(PYTHON) -m venv $(VENV)
	mkdir -p $(STAMPS)
	touch $@

# One stamp for each file of exact versions.
$(STAMPS)/%: requirements/%.txt | $(STAMPS)/venv
	$(PIP) install --quiet --requirement $<
	touch $@

# The editable install leaves the module beside the Python sources, which need no building.
# The test versions include all that the package itself needs, so that nothing is looked up here.
$(STAMPS)/native: $(RUST_SOURCES) Cargo.toml Cargo.lock pyproject.toml | $(STAMPS)/build $(STAMPS)/test
	env -u CONDA_PREFIX PIP_QUIET=2 VIRTUAL_ENV=$(abspath $(VENV)) $(BIN)/maturin develop --release --locked --quiet
	touch $@
