# One command for each job. `make` alone lists them.

PYTHON ?= python3
UV ?= uv
ARGS ?=
COVER ?=

VENV := .venv
BIN := $(VENV)/bin
TEST_READY := $(VENV)/.test-ready
DEV_READY := $(VENV)/.dev-ready
COVERED := --include='*/welldone/wire/*,*/welldone/rules/*'
LOCK := $(UV) pip compile --quiet --universal --generate-hashes --no-emit-index-url --python-version 3.11 \
	--exclude-newer "7 days"
NO_SERVER := welldone serve comes with the server; today: lint, fix, rules

.PHONY: help serve test coverage check lint types contracts docs docs-check format bench lock clean

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

serve: ## serve a model (comes with the server)
	@if [ -x $(BIN)/welldone ] && $(BIN)/welldone serve --help >/dev/null 2>&1; \
	then exec $(BIN)/welldone serve $(ARGS); \
	else echo "$(NO_SERVER)"; fi

test: $(TEST_READY) ## run the tests; ARGS="-k name" goes to pytest, COVER=1 notes which branches ran
	$(BIN)/python -m pytest $(if $(COVER),--cov --cov-report=) $(ARGS)

coverage: $(TEST_READY) ## after `make test COVER=1`: every branch of wire and rules has run
	$(BIN)/python -m coverage report --fail-under=100 $(COVERED)

check: lint types contracts docs-check ## all that CI does
	$(MAKE) test COVER=1
	$(MAKE) coverage

lint: $(DEV_READY) ## format and lint, changing nothing
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(DEV_READY) ## mypy, strict
	$(BIN)/mypy

contracts: $(DEV_READY) ## who may import whom
	$(BIN)/lint-imports

docs: $(TEST_READY) ## write the generated documents anew
	$(BIN)/python tools/docs.py

docs-check: $(TEST_READY) ## the generated documents are fresh
	$(BIN)/python tools/docs.py --check

format: $(DEV_READY) ## format, and mend what lint can mend
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(TEST_READY) ## how fast the core is
	$(BIN)/python benchmarks/wire.py $(ARGS)

lock: ## compile requirements/*.in anew (needs uv)
	$(LOCK) --output-file requirements/test.txt requirements/test.in
	$(LOCK) --output-file requirements/dev.txt requirements/dev.in

clean: ## remove what these commands made
	rm -rf $(VENV) build dist htmlcov .coverage .coverage.* .pytest_cache .mypy_cache .ruff_cache .hypothesis
	rm -rf .import_linter_cache tests/oracle/node/node_modules
	find src tests tools benchmarks -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

# The package is linked, not copied, so that an edit under src needs no new installation.
$(TEST_READY): requirements/test.txt pyproject.toml src/welldone/__init__.py
	[ -x $(BIN)/python ] || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --require-hashes -r requirements/test.txt
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	touch $@

$(DEV_READY): requirements/dev.txt $(TEST_READY)
	$(BIN)/python -m pip install --quiet --require-hashes -r requirements/dev.txt
	touch $@
