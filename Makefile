# One command for each job. `make` alone lists them. ARGS goes to the program that runs.

PYTHON ?= python3
ARGS ?=
BIN := .venv/bin
WEB := tests/web
# Two workers for each core: half of the time a test waits for a program that it has started.
WORKERS = -n $(shell $(PYTHON) -c 'import os; print(min(8, 2 * (os.cpu_count() or 1)))') --dist loadscope --no-loadscope-reorder
IS_NEW_ENOUGH := -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null

# pip installs into the environment $(1); where there is uv, that does it in a tenth of the time.
install = $(if $(shell command -v uv),uv pip install --quiet --python $(1)/bin/python,$(1)/bin/python -m pip install --quiet)

# Images for containers turn this cache off, and then each start of a program takes a second longer.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help serve test test-more test-all packages test-scale test-vllm check lint types contracts audit docs docs-check format \
	clients web-types matrix faults bench bench-serve bench-gateway bench-scale bench-tool bench-page shots servers lock \
	lock-servers clean

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' Makefile

serve: .venv/.serve ## serve a model: make serve ARGS="-m model.gguf --port 8080"
	@exec $(BIN)/welldone serve $(ARGS)

test: .venv/.test ## run the tests that need nothing but Python: make test ARGS="-k name"
	$(BIN)/python -m pytest $(WORKERS) $(if $(COVER),--cov --cov-report=term --cov-fail-under=100) $(ARGS)

test-more: packages ## run the others that CI runs: browsers, real clients, Redis, crashes (needs Node, Chromium, root)
	$(BIN)/python -m pytest $(WORKERS) --tier 2 $(ARGS)

test-all: test test-more ## run all: these, the short fault plan, slow tests, property tests with 1,000 examples each
	$(BIN)/python -m pytest $(WORKERS) --tier 3 $(ARGS)
	$(BIN)/python -m pytest $(WORKERS) --hypothesis-profile long -m hypothesis tests/laws tests/protocol tests/rules $(ARGS)

NODE := $(if $(shell command -v npm),$(WEB)/node_modules/.ready tests/oracle/node/node_modules/.ready)
packages: .venv/.dev clients $(NODE) ## install what they need

test-scale: .venv/.ray ## run the tests of a Ray cluster of three nodes
	$(BIN)/python -m pytest tests/cluster $(ARGS)

test-vllm: .venv/.test ## start a real vLLM through `command`, on the CPU (x86-64, 3 GB, ten minutes at first)
	$(BIN)/python tools/servers.py --only vllm --ready
	$(BIN)/python -m pytest tests/vllm $(ARGS)

check: lint types web-types contracts audit docs-check ## all that CI does
	$(MAKE) test COVER=1
	$(MAKE) test-more

lint: .venv/.dev ## check format and lint
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: .venv/.dev ## mypy, strict
	$(BIN)/mypy

contracts: .venv/.dev ## who may import whom
	$(BIN)/lint-imports

audit: .venv/.dev ## what is installed is what is pinned, by hash; ARGS=--write lists it anew in docs/dependencies.md
	$(BIN)/python tools/audit.py $(ARGS)

docs: .venv/.test ## write the generated documents anew
	$(BIN)/python tools/docs.py

docs-check: .venv/.test ## the generated documents are fresh
	$(BIN)/python tools/docs.py --check

format: .venv/.dev ## format, and fix what lint can fix
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clients: .venv-clients/.ready .venv-peers/.ready ## install the Python clients that tests and faults start

web-types: $(WEB)/node_modules/.ready ## the types of the page's JavaScript (needs npm)
	$(WEB)/node_modules/.bin/tsc -p src/welldone/web

matrix: .venv/.dev clients ## try every server on every client, and write docs/matrix.md anew
	WELLDONE_WRITE_MATRIX=1 $(BIN)/python -m pytest tests/clients/test_matrix.py $(ARGS)

faults: .venv/.dev ## do harm to real servers, and write docs/reliability.md; ARGS="--only nemesis --seed 7"
	$(BIN)/python -m faults $(ARGS)

bench: .venv/.test ## how fast the core is
	$(BIN)/python benchmarks/wire.py $(ARGS)

bench-serve: .venv/.serve ## what the server costs on top of its engine; ARGS="--quick -m model.gguf"
	$(BIN)/python benchmarks/serve.py $(ARGS)

bench-gateway: .venv/.serve .venv-peers/.ready ## what the gateway costs, beside others; ARGS="--only welldone,nginx"
	$(BIN)/python benchmarks/gateway.py $(ARGS)

bench-scale: .venv/.ray ## what a Ray cluster costs beside one server
	$(BIN)/python benchmarks/scale.py $(ARGS)

bench-tool: .venv/.test ## what `welldone bench` costs, beside other clients; ARGS="--quick"
	$(BIN)/python benchmarks/bench_tool.py $(ARGS)

bench-page: .venv/.dev ## what a long stream costs the page (needs Chromium); ARGS="--frames 10000"
	$(BIN)/python -m benchmarks.page $(ARGS)

shots: .venv/.dev ## take the pictures of docs/images anew (needs Chromium)
	$(BIN)/python -m tests.web.shots

servers: .venv/.serve ## check real servers, and write docs/servers.md anew; ARGS="--only vllm,litellm"
	$(BIN)/python tools/servers.py $(ARGS)

LOCK := uv pip compile --quiet --universal --generate-hashes --no-emit-index-url --python-version 3.11 --exclude-newer "7 days"
lock: ## compile requirements/*.in anew (needs uv)
	set -e; for name in serve test dev ray clients peers uv; do \
		$(LOCK) --output-file requirements/$$name.txt requirements/$$name.in; done

# PyTorch's CPU builds are made for each platform; these files are for this one, and without what only a GPU needs.
LOCK_CPU = $(filter-out --universal,$(LOCK)) --python-platform x86_64-manylinux_2_28 \
	$(addprefix --no-emit-package ,torchvision torchaudio torchcodec triton)
lock-servers: ## compile requirements/servers-*.in and guidellm.in anew (needs uv, and PyTorch's CPU builds in UV_INDEX)
	$(LOCK) --output-file requirements/servers-llama-cpp-python.txt requirements/servers-llama-cpp-python.in
	set -e; for name in servers-transformers servers-vllm guidellm; do \
		$(LOCK_CPU) --output-file requirements/$$name.txt requirements/$$name.in; done

clean: ## remove what these commands made
	rm -rf .venv .venv-* build dist htmlcov .coverage .coverage.* .pytest_cache .mypy_cache .ruff_cache .hypothesis
	rm -rf .import_linter_cache tests/oracle/node/node_modules $(WEB)/node_modules
	find src tests tools benchmarks faults -name __pycache__ -type d -prune -exec rm -rf {} +

# One environment, .venv, of which each step adds to the one before. The package is linked, not copied, so that an edit
# under src needs no new installation. With a Python that is too old, or gone, the environment is made anew.
.venv/.serve: requirements/serve.txt pyproject.toml src/welldone/__init__.py
	@$(BIN)/python $(IS_NEW_ENOUGH) || $(PYTHON) $(IS_NEW_ENOUGH) || \
		{ echo "welldone needs Python 3.11 or newer: make serve PYTHON=python3.12" >&2; exit 1; }
	@echo "making .venv, once"
	$(BIN)/python $(IS_NEW_ENOUGH) || $(PYTHON) -m venv --clear .venv
	$(call install,.venv) --require-hashes -r $<
	$(call install,.venv) --no-deps --no-build-isolation --editable .
	touch $@

.venv/.%: requirements/%.txt
	$(call install,.venv) --require-hashes -r $<
	touch $@

.venv/.test: .venv/.serve
.venv/.dev: .venv/.test
.venv/.ray: .venv/.dev

# Others, for what cannot be in the same one.
.venv-%/.ready: requirements/%.txt
	$(PYTHON) -m venv $(@D)
	$(call install,$(@D)) --require-hashes -r $<
	touch $@

%/node_modules/.ready: %/package-lock.json
	npm ci --prefix $* --no-audit --no-fund --loglevel=error
	touch $@
