# Thin on purpose: each target is a line that calls a script or pytest. `make help` lists them.
.DEFAULT_GOAL := help
SHELL := /bin/bash
PYTHON_BIN := .venv/bin/python
PYTEST := $(PYTHON_BIN) -m pytest
SEED ?= 1
SEEDS ?= 1
export NOTE ?=
DATA ?= ../shared/data

.PHONY: help setup gvisor triton demo test test-cluster test-triton test-fault sim sim-mutants results bench lint format generate pictures contract-image verify lock clean

help: ## list the targets
	@awk -F':.*## ' '/^[a-z%-]+:.*## / {printf "%-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## everything a machine with Python 3.11 needs, into .venv; instant when already done
	@scripts/setup

gvisor: setup ## runsc into .tools/bin, for commands with a kernel of their own; minutes once, instant then
	@scripts/gvisor/build

triton: setup ## a real Triton server on CPU into .tools/triton, for serving tests; half a minute once, instant then
	@scripts/triton/install

helm: setup ## helm into .tools, for the tests of the chart; minutes once, instant then
	@$(PYTHON_BIN) -m tests.cluster helm

cluster-up: setup ## a Kubernetes of one node on this machine (root, Debian); builds it the first time
	@$(PYTHON_BIN) -m tests.cluster up

cluster-down: setup ## ends it and leaves nothing but what was built
	@$(PYTHON_BIN) -m tests.cluster down

demo: setup ## the proof in under 5 minutes on a new machine: two agents without and with Forerun
	@.venv/bin/forerun demo --fast

test: setup ## all tests but those on a cluster and those that model servers take long for
	@$(PYTEST) tests --ignore=tests/cluster --ignore=tests/triton

test-cluster: setup ## operator and chart on a real Kubernetes of its own; builds it the first time (root, Debian)
	@$(PYTHON_BIN) -m tests.cluster programs  # before any test, none of which has the time for it
	@mkdir -p build && set -o pipefail && $(PYTEST) tests/cluster --verbose --capture=no 2>&1 | tee build/test-cluster.log

test-triton: setup ## real Triton servers: a real small model, the toy pair at length, and servers that are stopped and broken; fetches all the first time
	@$(PYTEST) tests/triton

test-fault: setup ## the real processes killed and broken (part of `make test`)
	@$(PYTEST) tests/fault

sim: setup ## the seeded simulation: SEEDS seeds from SEED on
	@$(PYTHON_BIN) -m tests.simulation --seed $(SEED) --seeds $(SEEDS)

sim-mutants: setup ## plant bugs, one at a time: the simulation has to catch each
	@$(PYTHON_BIN) -m tests.simulation.hunt

bench: bench-overhead ## all benchmarks; `make bench-NAME` for one, each writes build/bench/NAME.json; ARGS: its options

bench-%: setup
	@$(PYTHON_BIN) -m tests.bench.$* $(ARGS)

results: setup ## measure docs/results.md on the recorded runs in DATA (takes about 20 minutes)
	@$(PYTHON_BIN) scripts/results.py --data "$(DATA)"

lint: setup ## formatting, style and types; changes nothing
	@scripts/lint

format: setup ## format the code and fix what can be fixed safely
	@$(PYTHON_BIN) -m ruff format .
	@$(PYTHON_BIN) -m ruff check --fix-only .

generate: setup ## write everything that is generated from sources
	@$(PYTHON_BIN) scripts/generate.py

pictures: setup ## draw the dashboards' panels after a real run into docs/dashboards; needs Debian's prometheus
	@$(PYTHON_BIN) -m tests.integration.monitoring.pictures

contract-image: setup ## record a changed wire contract; NOTE="what changes for users"
	@$(PYTHON_BIN) scripts/contract_image.py --note "$$NOTE"

verify: setup ## everything generated equals what its sources give
	@$(PYTHON_BIN) scripts/verify.py

lock: setup ## resolve requirements.lock anew from pyproject.toml
	@$(PYTHON_BIN) scripts/lock.py

clean: ## remove everything that make and the tools made
	@rm -rf .venv .tools build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .grimp_cache
	@find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +
