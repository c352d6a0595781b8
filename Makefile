# Every target installs what it needs into .venv first; nothing has to be there but Python 3.11+ (and Java 17+ for Spark).
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
ARGS   ?=
CONSTRAINTS := $(wildcard constraints.txt)
# Where it is set, as in many containers, each process would compile every changed module and each worker all tests.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo test test-long check bench bench-kafka bench-spark chaos simulate docs install lock dist audit format clean
help:            ## this list
	@grep -E '^[a-z-]+: .*##' $(MAKEFILE_LIST) | awk -F ':.*## *' '{printf "  make %-11s %s\n", $$1, $$2}'

demo: $(STAMP)   ## flights through three hosts, one killed, into Spark; checked against the raw data
	@$(BIN)/actorproc demo $(ARGS)

test: $(STAMP)   ## the suite; ARGS="-k name" narrows it, ARGS="-m 'not long'" is what CI runs
	@$(BIN)/pytest -n 4 --dist loadfile $(ARGS)

test-long: $(STAMP) ## what takes minutes: Spark clusters, kills at random, other versions of Spark, table formats
	@$(BIN)/pytest -m long $(ARGS)

check: $(STAMP)  ## format, lint, types, import floors
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

format: $(STAMP) ## let ruff mend what it can
	@$(BIN)/ruff check --fix-only --quiet . ; $(BIN)/ruff format .

bench: $(STAMP)  ## speed and cost, as tables; ARGS="speed" picks one
	@$(BIN)/python -m benchmarks $(ARGS)

bench-kafka: $(STAMP) ## a Kafka topic into durable rows, against other libraries; needs Java and Maven
	@$(BIN)/python -m benchmarks $(ARGS) kafka

bench-spark: $(STAMP) ## the Spark half of it; ARGS="--quick" for a first impression
	@$(BIN)/python -m benchmarks spark $(ARGS)

chaos: $(STAMP)  ## two minutes of kill -9, SIGSTOP, stops and starts; ARGS="--spark source" with Spark behind
	@$(BIN)/python -m tests.chaos $(ARGS)

simulate: $(STAMP) ## the cluster in virtual time: 200 seeds, 240 cluster-hours, up to an hour
	@$(BIN)/python -m tests.simulation $(ARGS)

docs: $(STAMP)   ## the documentation as a site, in site/; ARGS=serve shows it while you edit
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs $(or $(ARGS),build --quiet)
	@$(if $(ARGS),,echo "open site/index.html")

install: $(STAMP) ## only the environment
$(STAMP): pyproject.toml Makefile $(CONSTRAINTS)
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "actorproc needs Python 3.11 or newer; this is " + sys.version.split()[0] + ". Point PYTHON= at one.")'
	@echo "installing into $(VENV), a minute or two ..."
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check 'uv>=0.8,<1'
	@# Compiled: where Python may not write bytecode itself, as in many containers, each process would take half a second more.
	@# compat: the checkout on sys.path, where Spark finds pyspark_actorproc; an import hook, the default, lists no modules.
	@$(BIN)/uv pip install --quiet --compile-bytecode --python $(BIN)/python --config-settings editable_mode=compat $(CONSTRAINTS:%=-c %) -e '.[dev]'
	@$(BIN)/python -m compileall -q actorproc
	@touch $@
	@echo "installed: $(BIN)/actorproc --help"

lock: $(STAMP)   ## constraints.txt for `make install`: adds what is missing; ARGS="--upgrade" takes the newest versions
	@$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --extra dev $(ARGS) --no-header --no-annotate --no-emit-index-url \
		--output-file constraints.txt pyproject.toml

dist: $(STAMP)   ## sdist and wheel in dist/, the same bytes for each build of a commit, checked by twine
	@rm -rf dist && $(BIN)/python -m tests.releases.distributions dist && $(BIN)/twine check --strict dist/*

audit: $(STAMP)  ## known vulnerabilities of what constraints.txt names; fails where PyPI does not answer
	@$(BIN)/uv tool run pip-audit --strict --requirement constraints.txt --no-deps --disable-pip

clean:           ## remove the environment and everything built
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache demo-data
