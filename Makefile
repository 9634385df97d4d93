# Development commands. `make` without a target lists them. ARGS is passed to the program of the target.

PYTHON ?= python3
ARGS ?=
BIN := .venv/bin
WEB := tests/web
# Two workers per core: tests spend about half of their time waiting for child processes.
WORKERS = -n $(shell $(PYTHON) -c 'import os; print(min(8, 2 * (os.cpu_count() or 1)))') --dist loadscope --no-loadscope-reorder
IS_NEW_ENOUGH := -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null

# Install into the virtual environment $(1): with uv if it is available (about ten times as fast), otherwise with pip.
install = $(if $(shell command -v uv),uv pip install --quiet --python $(1)/bin/python,$(1)/bin/python -m pip install --quiet)

# Container images often disable the bytecode cache, which makes each program start about a second slower.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help serve test durations test-more golden test-all packages test-package engine test-engine test-scale test-vllm check lint code-lines types contracts audit \
	docs docs-check docs-site format clients web-types matrix faults bench bench-instructions bench-calls bench-serve bench-gateway bench-scale bench-tool \
	bench-page shots servers resolve lock lock-servers clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' Makefile

serve: .venv/.serve ## serve a model: make serve ARGS="-m model.gguf --port 8080"
	@exec $(BIN)/welldone serve $(ARGS)

# Tests that count for the coverage of the core: others execute branches without asserting their result. With COVER they
# run by themselves, since measuring makes a test three times as slow.
COVERED := $(addprefix tests/,protocol rules recorded laws/test_real.py laws/test_nothing_lost.py)
test: .venv/.test ## run the tests that need only Python: make test ARGS="-k name"
	$(BIN)/python -m pytest $(WORKERS) $(if $(COVER),$(addprefix --ignore ,$(COVERED))) $(ARGS)
	$(if $(COVER),$(BIN)/python -m pytest $(WORKERS) --tier 1 --cov --cov-report=term --cov-fail-under=100 $(COVERED))

durations: .venv/.test ## run make test, and write tests/durations.md: the seconds of each folder
	$(BIN)/python tools/durations.py

test-more: packages ## run the other tests of CI: browsers, real clients, Redis, crashes (needs Node, Chromium, root)
	$(BIN)/python -m pytest $(WORKERS) --tier 2 $(ARGS)

test-all: test test-more ## run all tests, with the short fault plan, slow tests and 1,000 examples per property test
	$(BIN)/python -m pytest $(WORKERS) --tier 3 $(ARGS)
	$(BIN)/python -m pytest $(WORKERS) --hypothesis-profile long -m hypothesis tests/laws tests/protocol tests/rules $(ARGS)

golden: .venv/.test ## compare the whole output of the stream engine with golden/digests.json (15 min)
	$(BIN)/python -m pytest -q --tier 3 tests/golden/test_golden.py $(ARGS)

NODE := $(if $(shell command -v npm),$(foreach folder,$(WEB) tests/oracle/node tests/oracle/codex,$(folder)/node_modules/.ready))
packages: .venv/.dev clients .venv-docs/.ready $(NODE) ## install the dependencies of test-more

test-package: .venv/.serve .venv-uv/.ready .venv-pipx/.ready ## build the package, use it on each Python of this machine, with pipx and with uvx
	$(BIN)/python tools/package.py

engine: .venv/.serve ## build llama.cpp for this machine, faster than the wheel; ARGS="--cuda --jobs 4"
	$(BIN)/welldone engine build $(ARGS)

ENGINE_TESTS := tests/engines tests/live tests/cli/test_engine.py tests/server/test_model_loading.py
FAILURE_TESTS := $(addprefix tests/live/test_,crash.py disconnects.py drain.py continuation.py logs.py)
test-engine: .venv/.test ## build llama.cpp for this machine (minutes), and run the tests of engines and of the server on it
	$(BIN)/welldone engine build
	export WELLDONE_ENGINES="$$($(BIN)/welldone engine --folder)" && \
		$(BIN)/python -m pytest $(WORKERS) --tier 1 $(ENGINE_TESTS) $(ARGS) && \
		$(BIN)/python -m pytest $(WORKERS) --tier 2 $(FAILURE_TESTS) $(ARGS)

test-scale: .venv/.ray ## run the tests on a Ray cluster of three nodes
	$(BIN)/python -m pytest tests/cluster $(ARGS)

test-vllm: .venv/.test ## test vLLM as an engine process, on the CPU (x86-64, 3 GB, ten minutes the first time)
	$(BIN)/python tools/servers.py --only vllm --ready
	$(BIN)/python -m pytest tests/vllm $(ARGS)

check: lint types web-types contracts audit docs-check ## run everything that CI runs
	$(MAKE) test COVER=1
	$(MAKE) test-more
	$(MAKE) test-package

LOCKS := $(patsubst %,requirements/%.txt,serve library test dev clients langchain peers frameworks uv pipx docs) \
	src/welldone/engines/build_tools.txt
resolve: .venv-pip/.ready ## check that the oldest pip that the README names can install what CI installs
	set -e; for lock in $(LOCKS); do \
		.venv-pip/bin/python -m pip install -qq --dry-run --ignore-installed --require-hashes -r $$lock; done

lint: .venv/.dev ## check formatting, lint rules and that no package has grown
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/python tools/code_lines.py

code-lines: .venv/.serve ## record the code lines of each package in pyproject.toml
	$(BIN)/python tools/code_lines.py --update

types: .venv/.dev $(WEB)/node_modules/.ready ## run mypy in strict mode, and pyright on the public types (needs npm)
	$(BIN)/mypy
	$(BIN)/python tools/verify_types.py

contracts: .venv/.dev ## check the import contracts
	$(BIN)/lint-imports

audit: .venv/.dev ## verify the installed packages against the pinned hashes; ARGS=--write updates docs/dependencies.md
	$(BIN)/python tools/audit.py $(ARGS)

docs: .venv/.test ## regenerate the generated documents
	$(BIN)/python tools/docs.py

docs-check: .venv/.test ## check that the generated documents are up to date
	$(BIN)/python tools/docs.py --check

docs-site: .venv-docs/.ready ## build the documentation site into site/, and check its links
	NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build --strict $(ARGS)

format: .venv/.dev ## format the code and apply automatic lint fixes
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clients: $(patsubst %,.venv-%/.ready,clients langchain peers frameworks) ## install the clients and web frameworks that the tests run

web-types: $(WEB)/node_modules/.ready ## type-check the JavaScript of the web page and of the HTML report (needs npm)
	$(WEB)/node_modules/.bin/tsc -p src/welldone/web
	$(WEB)/node_modules/.bin/tsc -p src/welldone/bench/reports/page

matrix: .venv/.dev clients ## run every server against every client and regenerate docs/matrix.md
	WELLDONE_WRITE_MATRIX=1 $(BIN)/python -m pytest tests/clients/test_matrix.py $(ARGS)

faults: .venv/.dev ## inject faults into real servers and regenerate docs/reliability.md; ARGS="--only nemesis --seed 7"
	$(BIN)/python -m faults $(ARGS)

bench: .venv/.test ## measure the CPU cost per chunk of the core and of the ASGI middleware
	$(BIN)/python benchmarks/protocol.py $(ARGS)
	$(BIN)/python benchmarks/middleware.py $(ARGS)

bench-instructions: .venv/.test ## count user instructions per chunk and request (needs valgrind); ARGS="--compare before.json"
	$(BIN)/python benchmarks/instructions.py $(ARGS)

bench-calls: .venv/.test ## count the function calls per chunk and request, and their files
	$(BIN)/python benchmarks/calls.py $(ARGS)

bench-serve: .venv/.serve ## measure the overhead of the server over its engine; ARGS="--quick -m model.gguf", ARGS=--engines: all engines
	$(BIN)/python benchmarks/serve.py $(ARGS)

bench-gateway: .venv/.serve .venv-peers/.ready ## measure the overhead of the gateway and of other gateways; ARGS="--only welldone,nginx"
	$(BIN)/python benchmarks/gateway.py $(ARGS)

bench-scale: .venv/.ray ## compare a Ray cluster with a single server
	$(BIN)/python benchmarks/scale.py $(ARGS)

bench-tool: .venv/.test ## compare the overhead of `welldone bench` with other load generators; ARGS="--quick"
	$(BIN)/python benchmarks/bench_tool.py $(ARGS)

bench-page: .venv/.dev ## measure the web page while it renders a long stream (needs Chromium); ARGS="--frames 10000"
	$(BIN)/python -m benchmarks.page $(ARGS)

shots: .venv/.dev ## retake the screenshots in docs/images (needs Chromium)
	$(BIN)/python -m tests.web.shots

servers: .venv/.serve ## check real servers and regenerate docs/servers.md; ARGS="--only vllm,litellm"
	$(BIN)/python tools/servers.py $(ARGS)

LOCK := uv pip compile --quiet --universal --no-strip-extras --generate-hashes --no-emit-index-url --python-version 3.11 --exclude-newer "7 days"
lock: ## recompile requirements/*.in (needs uv)
	set -e; for name in serve library test dev ray clients langchain peers frameworks uv pip pipx docs; do \
		$(LOCK) --output-file requirements/$$name.txt requirements/$$name.in; done
	$(LOCK) --output-file src/welldone/engines/build_tools.txt requirements/engine-tools.in

# PyTorch's CPU builds differ per platform: these files are for x86-64 Linux and omit the packages that only a GPU needs.
LOCK_CPU = $(filter-out --universal,$(LOCK)) --python-platform x86_64-manylinux_2_28 \
	$(addprefix --no-emit-package ,torchvision torchaudio torchcodec triton)
lock-servers: ## recompile requirements/servers-*.in and guidellm.in (needs uv, and PyTorch's CPU builds in UV_INDEX)
	set -e; for name in servers-llama-cpp-python servers-litserve servers-hayhooks servers-mlx; do \
		$(LOCK) --output-file requirements/$$name.txt requirements/$$name.in; done
	set -e; for name in servers-transformers servers-vllm guidellm; do \
		$(LOCK_CPU) --output-file requirements/$$name.txt requirements/$$name.in; done

clean: ## remove virtual environments, caches and build output
	rm -rf .venv .venv-* build dist site htmlcov .coverage .coverage.* .pytest_cache .mypy_cache .ruff_cache .hypothesis
	rm -rf .import_linter_cache tests/oracle/*/node_modules $(WEB)/node_modules
	find src tests tools benchmarks faults -name __pycache__ -type d -prune -exec rm -rf {} +

# One virtual environment, .venv; each stamp file adds packages to the one before. The package is installed as editable:
# edits under src need no reinstallation. If the Python of .venv is too old or missing, .venv is recreated.
.venv/.serve: requirements/serve.txt pyproject.toml src/welldone/__init__.py
	@$(BIN)/python $(IS_NEW_ENOUGH) || $(PYTHON) $(IS_NEW_ENOUGH) || \
		{ echo "welldone needs Python 3.11 or newer: make serve PYTHON=python3.12" >&2; exit 1; }
	@echo "creating .venv (first run only)"
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

# Separate environments for packages whose requirements conflict with .venv.
.venv-%/.ready: requirements/%.txt
	$(PYTHON) -m venv $(@D)
	$(call install,$(@D)) --require-hashes -r $<
	touch $@

%/node_modules/.ready: %/package-lock.json
	npm ci --prefix $* --no-audit --no-fund --loglevel=error
	touch $@
