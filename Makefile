# Every target sets up what it needs. `make` alone lists them.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# pip's own notices are no news here; a hash that does not match still stops the build.
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet

.DEFAULT_GOAL := help
.PHONY: help setup demo example test test-peers properties fuzz crash attacks check format bench schema lock clean

help: ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

setup: $(VENV)/.ready ## make .venv from the lock files

$(VENV)/.ready: ops/requirements-test.lock pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed; set PYTHON=python3.x") if sys.version_info < (3, 11) else None'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install --require-hashes -r ops/requirements-test.lock
	$(PIP) install --no-build-isolation --no-deps -e .
	@touch $@

$(VENV)/.peers: $(VENV)/.ready ops/requirements-peers.lock
	$(PIP) install --require-hashes -r ops/requirements-peers.lock
	@touch $@

$(VENV)/.fuzz: $(VENV)/.ready ops/requirements-fuzz.lock
	$(PIP) install --require-hashes -r ops/requirements-fuzz.lock
	@touch $@

demo: setup ## the main job on real input, in about half a minute
	@$(BIN)/python -m ops.demo

example: setup ## from a document to clients, five runs with them, and a page that tells of them (CHECK=1: compare only)
	@$(BIN)/python -m ops.demo.example $(if $(CHECK),--check)

test: setup ## the whole test suite
	$(BIN)/python -m pytest --ignore tests/peers

test-peers: $(VENV)/.peers ## the suite against real issuers and stores; says by name what it skipped
	$(BIN)/python -m pytest tests/peers -n 0

properties: setup ## the lease state machine, a thousand examples (some minutes)
	LEASE_MACHINE_EXAMPLES=1000 $(BIN)/python -m pytest tests/properties/test_lease_machine.py -n 0 --timeout 3600

fuzz: $(VENV)/.fuzz ## run every fuzz target, FUZZ_SECONDS each (default 600); Linux only
	@$(BIN)/python -m tests.fuzz --seconds $${FUZZ_SECONDS:-600}

crash: setup ## kill the minter at every failpoint, the first few times that it gets there (some minutes)
	CRASH_TIMES=4 $(BIN)/python -m pytest tests/crash -n 0

attacks: setup ## a hundred thousand connections that come and go, and other floods, with what they cost
	FLOOD_CONNECTIONS=100000 $(BIN)/python -m pytest tests/attacks/test_floods.py tests/attacks/test_slow_clients.py -n 0 -s --timeout 900

check: setup ## format, lint, strict types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: setup ## rewrite the sources in the house format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix-only .

# mitmproxy pins older versions of what we use: it has an environment of its own.
$(VENV)/bench/.ready: $(VENV)/.ready ops/requirements-bench.lock
	test -x $(VENV)/bench/bin/python || $(BIN)/python -m venv $(VENV)/bench
	$(VENV)/bench/bin/python -m pip --disable-pip-version-check --quiet install --require-hashes -r ops/requirements-bench.lock
	@touch $@

bench: $(VENV)/bench/.ready ## measure against real peers in the same run (a quarter of an hour; BENCH=--quick: three minutes)
	@$(BIN)/python -m ops.bench $(BENCH)

schema: setup ## write config/grants.schema.json anew from the types
	$(BIN)/python -m config.schema > config/grants.schema.json

lock: ## write the lock files anew (needs uv)
	for f in requirements requirements-test requirements-peers requirements-bench requirements-fuzz; do \
	  uv pip compile --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links -q ops/$$f.in -o ops/$$f.lock; done

clean: ## remove what the other targets made
	rm -rf $(VENV) *.egg-info .pytest_cache .ruff_cache .mypy_cache .hypothesis .fuzz
