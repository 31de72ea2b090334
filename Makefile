# One command for a person and for CI. Every target makes .venv by itself; nothing changed, nothing installed.

PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed

# PySpark 3.5.9, 4.0.5, 4.1.4, 4.2.1 or 4.3.0, and those `make test` runs the smoke tests on: the oldest, and the one
# that is otherwise the most different from the newest.
VERSION ?= 3.5.9
SMOKED := 3.5.9 4.0.5

export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_NO_INPUT := 1
export NO_MKDOCS_2_WARNING := 1
# The build backend is pinned too: pip reads the first name before 25.3, the second from then on.
export PIP_CONSTRAINT := $(CURDIR)/constraints.txt
export PIP_BUILD_CONSTRAINT := $(CURDIR)/constraints.txt

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help install java maven promtool chromium go demo check docs reference test rows test-spark smoke-spark simulate model chaos bench bench-engine format clean

help: ## print the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' Makefile

$(INSTALLED): pyproject.toml constraints.txt
	@echo "step 1 of 2: a Python environment in .venv"
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@echo "step 2 of 2: semel, PySpark (large) and what the tests need; once, some minutes. What pip says:"
	@$(BIN)/python -m pip install -c constraints.txt -e '.[connect,postgres,http,ingress,console,redis,kafka,pipeline,metrics,otel,dev,docs]'
	@touch $@

install: $(INSTALLED) ## install all of it into .venv, once; the other targets do it by themselves
	@echo "semel is installed: .venv/bin/semel"

java: # Spark needs it; installed where that needs no password
	@.ci/java

maven: # it fetches the Kafka broker of the tests
	@.ci/maven

promtool: $(INSTALLED) # the tests of the alert rules run it
	@.ci/promtool

chromium: # the tests of the console run in it
	@.ci/chromium

go: # the checker of linearizability is built with it
	@.ci/go

demo: java $(INSTALLED) ## see it: real Spark, killed half-way, with semel and without
	$(BIN)/semel demo

check: $(INSTALLED) ## format, lint, types, the direction of imports, the tidy test, the documentation site
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	@$(MAKE) --no-print-directory docs
	SEMEL_SITE=site $(BIN)/python -m pytest -q tests/test_tidy.py tests/test_site.py tests/test_version.py

docs: $(INSTALLED) ## build the documentation site into site/; open site/index.html
	$(BIN)/mkdocs build --strict --quiet
	@echo "the documentation is built: site/index.html"

WORKERS ?= 2

test: java maven promtool chromium go $(INSTALLED) $(SMOKED:%=.venv-spark-%/.installed) ## every test on the newest Spark (WORKERS=2 processes), then the smoke tests on older ones
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup
	for version in $(SMOKED); do $(MAKE) smoke-spark VERSION=$$version || exit 1; done

reference: $(INSTALLED) ## write docs/reference/ again: commands, keys of a pipeline file, public names
	cd tests && ../$(BIN)/python -m support.reference

rows: $(INSTALLED) ## which test showed each row of the source systems in the last run; JSON=1
	@$(BIN)/python -m tests.support.rows $(if $(JSON),--json)

# An environment of its own for each PySpark. The extra `connect` needs 4.0: that of 3.5 wants NumPy before 2.
.venv-spark-%/.installed: pyproject.toml constraints.txt
	test -x $(@D)/bin/python || $(PYTHON) -m venv $(@D)
	sed 's/^pyspark==.*/pyspark==$*/' constraints.txt > $(@D)/constraints.txt
	PIP_CONSTRAINT=$(CURDIR)/$(@D)/constraints.txt PIP_BUILD_CONSTRAINT=$(CURDIR)/$(@D)/constraints.txt \
		$(@D)/bin/python -m pip install -e '.[$(if $(filter 3.%,$*),spark,connect),postgres,http,ingress,console,redis,kafka,pipeline,metrics,otel,dev]'
	@touch $@

test-spark: java maven .venv-spark-$(VERSION)/.installed ## the tests on Spark with another PySpark: make test-spark VERSION=3.5.9
	.venv-spark-$(VERSION)/bin/python -m pytest -n 2 --dist loadgroup tests/spark

smoke-spark: java .venv-spark-$(VERSION)/.installed # the few of them that `make test` runs on older ones too; none may be skipped
	CI=true .venv-spark-$(VERSION)/bin/python -m pytest -n 2 --dist loadgroup -m smoke tests/spark

simulate: $(INSTALLED) ## the real protocol on a simulated store, sink and clock
	$(BIN)/semel simulate

model: java maven go $(INSTALLED) ## check the model of the protocol, and the commits of the stores (some minutes); LARGE=1 for larger worlds
	$(BIN)/python -m model.check $(if $(LARGE),--large)
	SEMEL_HISTORIES=$(if $(LARGE),50,5) $(BIN)/python -m pytest -q -s -o faulthandler_timeout=0 tests/ledger/test_linearizable.py

MINUTES ?= 15
SEED ?= 1

chaos: java maven $(INSTALLED) ## a Spark cluster and real servers under many faults: make chaos MINUTES=15 SEED=1
	@mkdir -p build
	$(BIN)/semel chaos --minutes $(MINUTES) --seed $(SEED) --html build/chaos-$(SEED).html

BENCHES := postgres http redis kafka sources files

bench: java maven $(INSTALLED) ## measure every destination against its peers, and draw it (20 minutes)
	mkdir -p build/bench
	for name in $(BENCHES); do $(BIN)/python -m benchmarks $$name --json > build/bench/$$name.json || exit 1; done
	$(BIN)/python -m benchmarks.plots $(BENCHES:%=build/bench/%.json) --into docs/img

bench-engine: $(INSTALLED) ## measure columns, the engine and the ledger on this machine, without Spark
	$(BIN)/python -m benchmarks engine
	$(BIN)/python -m benchmarks ledger

format: $(INSTALLED) ## format the code, and apply the fixes that ruff knows
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

clean: ## remove caches and built files (.venv stays)
	rm -rf build dist site .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find src tests benchmarks model -type d -name __pycache__ -prune -exec rm -rf {} +
