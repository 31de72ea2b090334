# One command for a person and for CI. Every target makes .venv by itself; nothing changed, nothing installed.

PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed

export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_NO_INPUT := 1
# The build backend is pinned too: pip reads the first name before 25.3, the second from then on.
export PIP_CONSTRAINT := $(CURDIR)/constraints.txt
export PIP_BUILD_CONSTRAINT := $(CURDIR)/constraints.txt

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help install java maven demo check test test-spark42 simulate bench bench-spine format clean

help: ## print the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' Makefile

$(INSTALLED): pyproject.toml constraints.txt
	@echo "step 1 of 2: a Python environment in .venv"
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@echo "step 2 of 2: semel, PySpark (large) and what the tests need; once, some minutes. What pip says:"
	@$(BIN)/python -m pip install -c constraints.txt -e '.[connect,postgres,http,redis,kafka,dev]'
	@touch $@

install: $(INSTALLED) ## install all of it into .venv, once; the other targets do it by themselves
	@echo "semel is installed: .venv/bin/semel"

java: # Spark needs it; installed where that needs nobody's password
	@.ci/java

maven: # it fetches the Kafka broker of the tests
	@.ci/maven

demo: java $(INSTALLED) ## see it: real Spark, killed half-way, with semel and without
	$(BIN)/semel demo

check: $(INSTALLED) ## format, lint, types, the direction of imports, the tidy test
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -q tests/test_tidy.py

test: java maven $(INSTALLED) ## every test, on two processes
	$(BIN)/python -m pytest -n 2 --dist loadgroup

.venv42/.installed: pyproject.toml constraints.txt
	test -x .venv42/bin/python || $(PYTHON) -m venv .venv42
	sed 's/^pyspark==.*/pyspark==4.2.1/' constraints.txt > .venv42/constraints.txt
	PIP_CONSTRAINT=$(CURDIR)/.venv42/constraints.txt PIP_BUILD_CONSTRAINT=$(CURDIR)/.venv42/constraints.txt \
		.venv42/bin/python -m pip install -e '.[connect,postgres,http,redis,kafka,dev]'
	@touch $@

test-spark42: java maven .venv42/.installed ## the tests on Spark, with PySpark 4.2
	.venv42/bin/python -m pytest -n 2 --dist loadgroup tests/spark

simulate: $(INSTALLED) ## the real protocol on a simulated store, sink and clock
	$(BIN)/semel simulate

BENCHES := postgres http redis kafka files

bench: java maven $(INSTALLED) ## measure every destination against its peers, and draw it (20 minutes)
	mkdir -p build/bench
	for name in $(BENCHES); do $(BIN)/semel bench $$name --json > build/bench/$$name.json || exit 1; done
	$(BIN)/python -m semel.bench.plots $(BENCHES:%=build/bench/%.json) --into docs/img

bench-spine: $(INSTALLED) ## measure the spine on this machine
	$(BIN)/python -m semel.bench.spine

format: $(INSTALLED) ## write the format and what ruff can mend by itself
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

clean: ## remove caches and built files (.venv stays)
	rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find src tests -type d -name __pycache__ -prune -exec rm -rf {} +
