# Remuda's developer entry points. `make` alone lists them.
# Needs Python 3.11 and make; `make kube` also needs Go 1.26. Everything else is set up here.

SHELL := /bin/sh
BIN := .venv/bin
STAMP := .venv/.stamp
COMPILED := .venv/.compiled
# What lint says while the tests run beside it; shown after them.
LINT_LOG := .venv/lint.log

# The suite is sized for two cores. Many tests wait for disks, sockets and child processes, so four at a time keep both busy, and
# more of those that wait for whole clusters; override with `make check JOBS=8`, `make test TEST_JOBS=8`.
JOBS ?= 4
TEST_JOBS ?= 6
PYTEST := $(BIN)/python -m pytest
# Containers often tell Python to keep no bytecode. Then every worker, and every process that a test starts, compiles all of it anew:
# half a minute of each run.
export PYTHONDONTWRITEBYTECODE :=

# A test directory that is not there yet must not fail the run, so only existing ones are passed.
FAST_TESTS = $(wildcard tests/unit tests/property tests/component)
# Over sockets, processes and servers: first in a run, because they wait most.
REAL_TESTS = tests/torch tests/e2e tests/kube tests/conformance tests/kubelet_rows tests/crash
# Where drills of the failure checklist are; those in tests/kube need a real kubelet.
DRILLS = tests/drills $(wildcard tests/component/test_rows_*.py) tests/kubelet_rows $(wildcard tests/kube/test_kubelet_*.py) -k test_row_

.DEFAULT_GOAL := help
.PHONY: help venv pins format lint check test loaded demo drills kube bench-recovery bench-apiserver bench-node bench-straggler bench-failure bench-hostile bench-agents bench-copies clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

venv: $(STAMP) ## make .venv with pinned dependencies and an editable install

$(STAMP): pyproject.toml pins/dev.txt tools/bootstrap
	@tools/bootstrap
	@touch $@

pins: ## write pins/*.txt anew: versions and hashes of every package (ARGS=--newest takes newer versions)
	@test -x $(BIN)/python || { echo "make venv first"; exit 1; }
	$(BIN)/python tools/pins $(ARGS)

format: $(STAMP) ## rewrite the sources in the project's format and apply safe fixes
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

lint: $(STAMP) ## format, lint, types and layers, without tests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy --strict src tests bench
	$(BIN)/lint-imports

check: $(COMPILED) ## lint + unit, property and component tests (under two minutes)
	@$(MAKE) --no-print-directory lint > $(LINT_LOG) 2>&1 & lint=$$!; \
	$(PYTEST) -n $(JOBS) -m "not slow" --hypothesis-profile quick --schedules 10 $(FAST_TESTS); tests=$$?; \
	wait $$lint; lint=$$?; cat $(LINT_LOG); exit $$((tests | lint))

# In a fresh clone one process compiles the tests; else every worker does it for itself.
$(COMPILED): $(STAMP)
	@$(PYTEST) --collect-only -qq -p no:cacheprovider $(REAL_TESTS) $(FAST_TESTS) > /dev/null || true
	@touch $@

# Every test once, each with all its examples; tests that share a server or a node share a process (tests/conftest.py).
test: $(COMPILED) ## every test: check's with all their examples, end-to-end, crash, against a real Kubernetes and PyTorch
	@$(MAKE) --no-print-directory lint
	$(PYTEST) -n $(TEST_JOBS) --dist loadgroup --durations 20 $(REAL_TESTS) $(FAST_TESTS) tests/drills

loaded: $(STAMP) ## the tests over sockets, processes and servers, five times in a row while every core is kept busy
	@$(BIN)/python tools/loaded-runs $(ARGS)

drills: $(STAMP) ## one drill per row of the failure checklist, the table of them, and docs/failure-modes.md from it
	$(PYTEST) -n $(JOBS) --dist loadgroup -q -p tests.drill_table --write-docs $(DRILLS)

demo: $(STAMP) ## a cluster of simulated GPUs on this machine, a training job, and a failure it survives
	$(BIN)/remuda demo

kube: ## build the real Kubernetes for `make test` (Go >= 1.26; cached outside the repo); as root, a node's packages too
	@tools/build-kube
	@tools/node-packages

bench-recovery: $(STAMP) ## measure recovery times and print PASS or MISS for each bar
	$(BIN)/python -m bench.recovery $(ARGS)

bench-apiserver: $(STAMP) ## compare the embedded API server with a real one under load (needs `make kube` and Go)
	$(BIN)/python -m bench.apiserver $(ARGS)

bench-straggler: $(STAMP) ## who is found slow, how surely and how soon, on gangs whose stragglers are known
	$(BIN)/python -m bench.straggler $(ARGS)

bench-failure: $(STAMP) ## measure a storm of failures: signals to verdicts at scale, 750 nodes quarantined (needs `make kube`)
	$(BIN)/python -m bench.failure $(ARGS)

bench-node: $(STAMP) ## measure nodes at scale, Allocate and signals, and print PASS or MISS for each bar
	$(BIN)/python -m bench.node $(ARGS)

bench-copies: $(STAMP) ## copy a checkpoint of 1 GiB to another node while a rank trains: slow-down of its steps, throughput
	$(BIN)/python -m bench.copies $(ARGS)

bench-hostile: $(STAMP) ## a gang trains while a second tenant does harm: leases, pods, writes and memory against bars
	$(BIN)/python -m bench.hostile $(ARGS)

bench-agents: $(STAMP) ## what 1,000 agents cost a real kube-apiserver, idle and in a storm (needs `make kube`)
	$(BIN)/python -m bench.agents $(ARGS)

clean: ## remove .venv and every generated file (keeps the Kubernetes cache)
	rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find src tests bench tools -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
