# Everything happens inside this checkout: the environment is .venv, made from the exact versions in .ci/requirements. A machine
# without a recent Rust gets one in .toolchain. A target does nothing it has done before: stamps in .venv/.stamps say what
# is up to date. The path of the checkout may contain spaces, so it is quoted and is never part of a target's name.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules

PYTHON ?= python3
VENV := .venv
PEERS_VENV := .peers-venv
RAY_VENV := .ray-venv
JUPYTER_VENV := .jupyter-venv
BIN := $(VENV)/bin
STAMPS := $(VENV)/.stamps
# Modules are compiled when they are first imported, which most never are.
PIP_INSTALL := --disable-pip-version-check --no-input install --quiet --no-compile --requirement
# Before a command that needs Rust.
WITH_RUST := $(BIN)/python .ci/rust.py
# Tests wait for processes half of their time, so there are two processes of them for each core, up to eight. A file's tests stay
# together, as they share a cluster.
PROCESSES ?= $(shell n=$$(nproc); echo $$((n < 4 ? 2 * n : 8)))
PYTEST = $(WITH_RUST) $(BIN)/python -m pytest --numprocesses=$(PROCESSES) --dist=loadfile --durations=20
RUST_SOURCES := $(shell find crates \( -name target -o -path crates/fuzz \) -prune -o \( -name '*.rs' -o -name Cargo.toml \) -print 2>/dev/null)
TEST_ARGS ?=
# Cargo's profile for the core that Python uses. `tests` is the one of the Rust tests: it omits link-time optimization, so the
# core compiles faster and runs slower.
PROFILE ?= release
FUZZ_S ?= 60
IDS ?= tests/peers/claimed.txt
BENCH_ARGS ?= all --quick --against ppe
MINUTES ?= 30
GATE_ARGS ?= --base main --head HEAD
GATE_WORKLOADS ?= throughput latency map broadcast
# Longer than any run of the Rust tests, so that one that hangs ends the build.
RUST_TESTS_TIMEOUT_S := 1500

# Tests start thousands of interpreters, and where this is set each would compile what it imports.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo test test-all test-rust test-loom test-python test-sites wheels test-lab test-statistics peer-tests test-peers fuzz soak bench gate figures docs lint lock clean build installed

help: ## List the targets
	@grep -hE '^[a-z-]+:.*## ' Makefile | sed -E 's/:.*## /\t/' | expand -t 14

demo: $(STAMPS)/native ## Start four engines, run a map, print its result and timing
	@$(BIN)/python examples/demo.py

test: test-rust test-python test-lab ## Run the tests that need nothing but this checkout; TEST_ARGS="-k map" chooses among those of Python

test-all: test test-loom test-sites test-statistics test-peers fuzz ## Run all tests: also with schedulers, SSH, MPI, Dask and Ray, of wheels, IPython Parallel's own, and fuzzing

test-rust: $(STAMPS)/native
	@$(WITH_RUST) timeout $(RUST_TESTS_TIMEOUT_S) cargo test --profile tests --locked --quiet --workspace --exclude broadleaf-python

# Every interleaving of threads that share atomics. Loom's are other types, so whatever uses them is compiled again, which
# takes a minute and a half of one core.
test-loom: $(STAMPS)/native
	@RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR=target/loom $(WITH_RUST) timeout $(RUST_TESTS_TIMEOUT_S) \
	  cargo test --profile tests --locked --quiet --package broadleaf-engine --package broadleaf-shm --lib model

test-python: $(STAMPS)/native $(STAMPS)/test $(STAMPS)/lab
	@$(PYTEST) tests -m "not sites" $(TEST_ARGS)

test-sites: $(STAMPS)/native $(STAMPS)/test $(STAMPS)/ray-venv $(STAMPS)/jupyter-venv $(STAMPS)/peers-venv $(STAMPS)/release
	@$(PYTEST) tests -m sites $(TEST_ARGS)

# The laboratory needs nothing of Broadleaf.
test-lab: $(STAMPS)/test $(STAMPS)/lab
	@$(PYTEST) lab/tests -m "not statistics" $(TEST_ARGS)

test-statistics: $(STAMPS)/test $(STAMPS)/lab
	@$(PYTEST) lab/tests -m statistics $(TEST_ARGS)

fuzz: $(STAMPS)/native ## Try each decoder with random input; FUZZ_S=60 says for how long
	@$(WITH_RUST) $(BIN)/python crates/fuzz/run.py --seconds $(FUZZ_S)

peer-tests: $(STAMPS)/native $(STAMPS)/peers-venv ## Run tests of IPython Parallel's own suite on Broadleaf; IDS=FILE lists them
	$(PEERS_VENV)/bin/python tests/peers/run.py "$(IDS)"

test-peers: $(STAMPS)/native $(STAMPS)/peers-venv
	@$(PEERS_VENV)/bin/python tests/peers/run.py tests/peers/claimed.txt

bench: $(STAMPS)/native $(STAMPS)/bench ## Run the benchmarks; BENCH_ARGS="latency --against ppe,ray" chooses which
	$(BIN)/python -m benchmarks $(BENCH_ARGS)

gate: $(STAMPS)/native $(STAMPS)/test $(STAMPS)/lab ## Measure whether HEAD is slower than main; GATE_ARGS="--base v0.2" chooses
	@for workload in $(GATE_WORKLOADS); do \
	  echo "$$workload:"; \
	  $(WITH_RUST) $(BIN)/broadleaf-lab gate --study benchmarks/gate --at workload=$$workload $(GATE_ARGS) || exit; \
	done

wheels: $(STAMPS)/run $(STAMPS)/release ## Build the wheels and source archives of a release in dist/, and check them
	@$(WITH_RUST) $(BIN)/python .ci/wheels.py --profile $(PROFILE)

soak: $(STAMPS)/native $(STAMPS)/test ## Attack a cluster for MINUTES, and look whether all is as it was afterwards
	$(BIN)/python tests/attack/soak.py --minutes $(MINUTES)

figures: $(STAMPS)/native $(STAMPS)/docs ## Make the tables and plots of README and docs from benchmarks/results
	@$(BIN)/python -m benchmarks.figures

docs: $(STAMPS)/native $(STAMPS)/docs $(STAMPS)/lab ## Build the documentation in docs/_build/html
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs docs/_build/html
	@echo "docs/_build/html/index.html"

lint: $(STAMPS)/native $(STAMPS)/lint ## Check formatting, lints and types of the Python and Rust code
	$(BIN)/ruff check python lab benchmarks tests crates .ci examples docs
	$(BIN)/ruff format --check python lab benchmarks tests crates .ci examples docs
	$(BIN)/lint-imports --no-cache
	$(BIN)/lint-imports --no-cache lab/pyproject.toml
	$(BIN)/pydoclint -q python/broadleaf lab/src benchmarks
	$(BIN)/codespell
	$(BIN)/mypy
	$(BIN)/pyright
	@for package in broadleaf broadleaf_lab; do \
	  PYTHONPATH=python:lab/src $(BIN)/pyright --verifytypes $$package --ignoreexternal >$(STAMPS)/types.txt \
	    || { cat $(STAMPS)/types.txt; exit 1; }; \
	done
	$(BIN)/python -m mypy.stubtest --ignore-disjoint-bases broadleaf._native
	$(WITH_RUST) cargo fmt --all --check
	$(WITH_RUST) cargo clippy --profile $(PROFILE) --locked --workspace --all-targets -- -D warnings

# Everything that checks need.
installed: $(STAMPS)/native $(STAMPS)/release $(STAMPS)/peers-venv $(STAMPS)/ray-venv $(STAMPS)/jupyter-venv $(STAMPS)/test $(STAMPS)/lint $(STAMPS)/docs $(STAMPS)/lab

build: $(STAMPS)/native ## Build the native module and install the package into .venv

lock: $(STAMPS)/lock ## Update the versions in .ci/requirements (needs the network)
	.ci/lock.sh

clean: ## Remove everything that the targets made
	rm -rf $(VENV) $(PEERS_VENV) $(RAY_VENV) $(JUPYTER_VENV) dist .mpi-venvs .page-venvs .psij-packages .toolchain .bench-venvs .bed target crates/fuzz/target docs/_build bench-results
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis
	rm -rf benchmarks/gate/.venv benchmarks/gate/.venvs benchmarks/gate/.lab benchmarks/gate/runs.lock
	find python lab benchmarks tests crates .ci examples docs -name __pycache__ -prune -exec rm -rf {} +
	rm -f python/broadleaf/_native*.so

# What the machine must have is checked, or installed, before anything that takes long.
$(STAMPS)/rust:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Broadleaf needs Python 3.11 or newer")'
	@$(PYTHON) .ci/rust.py
	@mkdir -p $(STAMPS)
	@touch $@

$(STAMPS)/venv: | $(STAMPS)/rust
	$(PYTHON) -m venv $(VENV)
	@touch $@

# One stamp for each file of exact versions.
$(STAMPS)/%: .ci/requirements/%.txt | $(STAMPS)/venv
	.ci/pip.sh $(PIP_INSTALL) $<
	@touch $@

# The laboratory's sources need no building: an editable install tells Python where they are.
$(STAMPS)/lab: lab/pyproject.toml | $(STAMPS)/run
	.ci/pip.sh --disable-pip-version-check --no-input install --quiet --no-deps --no-build-isolation --editable lab
	@touch $@

# IPython Parallel's own tests have an environment of their own: its commands have the names of ours.
$(STAMPS)/peers-venv: .ci/requirements/peers.txt | $(STAMPS)/venv
	$(PYTHON) -m venv $(PEERS_VENV)
	$(PEERS_VENV)/bin/python -m pip $(PIP_INSTALL) $<
	@touch $@

# Ray's 370 MB are for a few tests; they skip where this is missing.
$(STAMPS)/ray-venv: .ci/requirements/ray.txt | $(STAMPS)/venv
	$(PYTHON) -m venv $(RAY_VENV)
	$(RAY_VENV)/bin/python -m pip $(PIP_INSTALL) $<
	@touch $@

# JupyterLab and what Broadleaf needs in notebooks, as somebody new installs them.
$(STAMPS)/jupyter-venv: .ci/requirements/jupyter.txt | $(STAMPS)/venv
	$(PYTHON) -m venv $(JUPYTER_VENV)
	$(JUPYTER_VENV)/bin/python -m pip $(PIP_INSTALL) $<
	@touch $@

# A core that was compiled in another profile is out of date: benchmarks must not measure that of the tests.
$(STAMPS)/profile-%: | $(STAMPS)/venv
	@rm -f $(STAMPS)/profile-*
	@touch $@

# The editable install leaves the module beside the Python sources, which need no building.
$(STAMPS)/native: $(RUST_SOURCES) Cargo.toml Cargo.lock pyproject.toml $(STAMPS)/profile-$(PROFILE) | $(STAMPS)/run
	@echo "compiling the core: about a minute the first time"
	@env -u CONDA_PREFIX CARGO_TERM_QUIET=true PIP_QUIET=2 VIRTUAL_ENV="$(CURDIR)/$(VENV)" \
	  $(WITH_RUST) $(BIN)/maturin develop --profile $(PROFILE) --locked --quiet --pip-path .ci/pip.sh
	@touch $@
