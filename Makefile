# One command for each job. `make` alone lists them.

PYTHON ?= python3
UV ?= uv
ARGS ?=
# What installs into an environment: pip, or a quicker one that CI names, which is told the environment's Python.
INSTALLER ?=
COVER ?=

install = $(if $(INSTALLER),$(INSTALLER) $(1)/bin/python,$(1)/bin/python -m pip install --quiet)

VENV := .venv
BIN := $(VENV)/bin
SERVE_READY := $(VENV)/.serve-ready
TEST_READY := $(VENV)/.test-ready
DEV_READY := $(VENV)/.dev-ready
CLIENTS := .venv-clients
PEERS := .venv-bench
SERVERS := .venv-servers
RAY := .venv-ray
WEB := tests/web
IS_NEW_ENOUGH := -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null
COVERED := --include='*/welldone/wire/*,*/welldone/rules/*'
LOCK := $(UV) pip compile --quiet --universal --generate-hashes --no-emit-index-url --python-version 3.11 \
	--exclude-newer "7 days"
# PyTorch's CPU builds are made for each platform; these files are for this one. What only a GPU needs does not load beside
# such a build.
LOCK_CPU = $(filter-out --universal,$(LOCK)) --python-platform x86_64-manylinux_2_28
GPU_ONLY := $(addprefix --no-emit-package ,torchvision torchaudio torchcodec triton)

.PHONY: help serve test test-scale test-vllm clients matrix coverage check lint types contracts audit docs docs-check \
	format bench bench-serve bench-gateway bench-scale bench-tool bench-page faults web-types shots servers lock lock-servers clean

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

serve: $(SERVE_READY) ## serve a model; ARGS="-m model.gguf --port 8080" goes to welldone serve
	@exec $(BIN)/welldone serve $(ARGS)

test: $(TEST_READY) ## run the tests; ARGS="-k name" goes to pytest, COVER=1 notes which branches ran
	$(BIN)/python -m pytest $(if $(COVER),--cov --cov-report=) $(ARGS)

test-scale: $(RAY)/.ready ## run the tests on a Ray cluster of three nodes; ARGS="-k name" goes to pytest
	$(RAY)/bin/python -m pytest -m scale tests/scale $(ARGS)

test-vllm: $(TEST_READY) ## start a real vLLM through `command`, on the CPU (x86-64, 3 GB, ten minutes at first)
	$(BIN)/python tools/servers.py --only vllm --ready
	WELLDONE_VLLM=1 $(BIN)/python -m pytest tests/vllm $(ARGS)

clients: $(CLIENTS)/clients/.ready $(CLIENTS)/litellm/.ready $(CLIENTS)/schemathesis/.ready ## install the Python clients that tests and faults start

matrix: $(TEST_READY) clients ## try every server on every client, and write docs/matrix.md anew
	WELLDONE_WRITE_MATRIX=1 $(BIN)/python -m pytest tests/clients/test_matrix.py $(ARGS)

coverage: $(TEST_READY) ## after `make test COVER=1`: every branch of wire and rules has run
	$(BIN)/python -m coverage report --fail-under=100 $(COVERED)

check: lint types web-types contracts audit docs-check ## all that CI does
	$(MAKE) test COVER=1
	$(MAKE) coverage

lint: $(DEV_READY) ## format and lint, changing nothing
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(DEV_READY) ## mypy, strict
	$(BIN)/mypy

faults: $(TEST_READY) ## do harm to real servers, and write docs/reliability.md; ARGS="--only nemesis --seed 7"
	$(BIN)/python -m faults $(ARGS)

web-types: $(WEB)/node_modules/.ready ## the types of the page's JavaScript (needs npm)
	$(WEB)/node_modules/.bin/tsc -p src/welldone/web

contracts: $(DEV_READY) ## who may import whom
	$(BIN)/lint-imports

audit: $(DEV_READY) ## what is installed is what is pinned, by hash; ARGS=--write lists it anew in docs/dependencies.md
	$(BIN)/python tools/audit.py $(ARGS)

docs: $(TEST_READY) ## write the generated documents anew
	$(BIN)/python tools/docs.py

docs-check: $(TEST_READY) ## the generated documents are fresh
	$(BIN)/python tools/docs.py --check

format: $(DEV_READY) ## format, and mend what lint can mend
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(TEST_READY) ## how fast the core is
	$(BIN)/python benchmarks/wire.py $(ARGS)

bench-serve: $(SERVE_READY) ## what the server costs on top of its engine; ARGS="--quick -m model.gguf"
	$(BIN)/python benchmarks/serve.py $(ARGS)

bench-gateway: $(SERVE_READY) $(PEERS)/.ready ## what the gateway costs, beside others; ARGS="--only welldone,nginx"
	$(BIN)/python benchmarks/gateway.py $(ARGS)

bench-scale: $(RAY)/.ready ## what a Ray cluster costs beside one server
	$(RAY)/bin/python benchmarks/scale.py $(ARGS)

bench-tool: $(TEST_READY) ## what `welldone bench` costs, beside other clients; ARGS="--quick"
	$(BIN)/python benchmarks/bench_tool.py $(ARGS)

bench-page: $(TEST_READY) ## what a long stream costs the page (needs Chromium); ARGS="--frames 10000"
	$(BIN)/python -m benchmarks.page $(ARGS)

shots: $(TEST_READY) ## take the pictures of docs/images anew (needs Chromium)
	$(BIN)/python -m tests.web.shots

servers: $(SERVE_READY) ## check real servers, and write docs/servers.md anew; ARGS="--only vllm,litellm"
	$(BIN)/python tools/servers.py $(ARGS)

lock: ## compile requirements/*.in anew (needs uv)
	$(LOCK) --output-file requirements/serve.txt requirements/serve.in
	$(LOCK) --output-file requirements/image.txt requirements/image.in
	$(LOCK) --output-file requirements/test.txt requirements/test.in
	$(LOCK) --output-file requirements/dev.txt requirements/dev.in
	$(LOCK) --output-file requirements/clients.txt requirements/clients.in
	$(LOCK) --output-file requirements/litellm.txt requirements/litellm.in
	$(LOCK) --output-file requirements/schemathesis.txt requirements/schemathesis.in
	$(LOCK) --output-file requirements/bench.txt requirements/bench.in
	$(LOCK) --output-file requirements/uv.txt requirements/uv.in
	$(LOCK) --output-file requirements/ray.txt requirements/ray.in

lock-servers: ## compile requirements/servers-*.in and guidellm.in anew (needs uv, and in UV_FIND_LINKS or UV_INDEX PyTorch's CPU builds)
	$(LOCK) --output-file requirements/servers-llama-cpp-python.txt requirements/servers-llama-cpp-python.in
	$(LOCK_CPU) --output-file requirements/servers-transformers.txt requirements/servers-transformers.in
	$(LOCK_CPU) $(GPU_ONLY) --output-file requirements/servers-vllm.txt requirements/servers-vllm.in
	$(LOCK_CPU) $(GPU_ONLY) --output-file requirements/guidellm.txt requirements/guidellm.in

clean: ## remove what these commands made
	rm -rf $(VENV) $(CLIENTS) $(PEERS) $(SERVERS) $(RAY) build dist htmlcov .coverage .coverage.*
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	rm -rf tests/oracle/node/node_modules $(WEB)/node_modules
	find src tests tools benchmarks -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

# The package is linked, not copied, so that an edit under src needs no new installation.
# An environment keeps the Python that made it: with one that is too old, or gone, it is made anew.
$(SERVE_READY): requirements/serve.txt pyproject.toml src/welldone/__init__.py
	@$(BIN)/python $(IS_NEW_ENOUGH) || $(PYTHON) $(IS_NEW_ENOUGH) || \
		{ echo "welldone needs Python 3.11 or newer: make serve PYTHON=python3.12" >&2; exit 1; }
	@echo "making $(VENV), once"
	$(BIN)/python $(IS_NEW_ENOUGH) || $(PYTHON) -m venv --clear $(VENV)
	$(call install,$(VENV)) --require-hashes -r requirements/serve.txt
	$(call install,$(VENV)) --no-deps --no-build-isolation --editable .
	touch $@

$(TEST_READY): requirements/test.txt $(SERVE_READY)
	$(call install,$(VENV)) --require-hashes -r requirements/test.txt
	touch $@

$(DEV_READY): requirements/dev.txt $(TEST_READY)
	$(call install,$(VENV)) --require-hashes -r requirements/dev.txt
	touch $@

$(WEB)/node_modules/.ready: $(WEB)/package-lock.json
	npm ci --prefix $(WEB) --no-audit --no-fund --loglevel=error
	touch $@

$(CLIENTS)/%/.ready: requirements/%.txt
	[ -x $(@D)/bin/python ] || $(PYTHON) -m venv $(@D)
	$(call install,$(@D)) --require-hashes -r $<
	touch $@

# The gateways beside which welldone is measured.
$(PEERS)/.ready: requirements/bench.txt
	[ -x $(@D)/bin/python ] || $(PYTHON) -m venv $(@D)
	$(call install,$(@D)) --require-hashes -r $<
	touch $@

$(RAY)/.ready: requirements/ray.txt pyproject.toml src/welldone/__init__.py
	[ -x $(@D)/bin/python ] || $(PYTHON) -m venv $(@D)
	$(call install,$(@D)) --require-hashes -r $<
	$(call install,$(@D)) --no-deps --no-build-isolation --editable .
	touch $@
