# Two commands on a fresh machine: `make run` and `make test`. Both install into .venv from this
# folder's own files (requirements/dev.lock, hashes checked) the first time they are called.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# The kernels are C: a machine without a compiler gets one from pip.
HAS_COMPILER := import os, shutil, sysconfig; word = (os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc").split()[0]; raise SystemExit(shutil.which(word) is None)

# Some environments forbid bytecode; every process that a test starts would compile 600 modules anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: run test test-long test-these bench bench-page interop lint docs lock clean

$(STAMP): requirements/dev.lock requirements/compiler.lock pyproject.toml setup.py $(wildcard src/oberth/kernels/native/*) src/oberth/kernels/arguments.py src/oberth/kernels/layout.py src/oberth/formats/message.py
	@$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed, found " + sys.version.split()[0] if sys.version_info < (3, 11) else 0)'
	@echo "== install into $(VENV), once: $$(grep -c '^[a-z].*==' requirements/dev.lock) packages, 1.8 GB on the disk, minutes; Spark is the largest. make clean removes it"
	@test -x $(BIN)/python || { echo "   an environment of its own"; $(PYTHON) -m venv $(VENV); }
	@$(BIN)/python -m pip install --quiet --upgrade pip setuptools
	@rm -f $(VENV)/.packages; \
	{ $(BIN)/python -m pip install --require-hashes --requirement requirements/dev.lock && touch $(VENV)/.packages; } \
		| grep --line-buffered -oE "Downloading .*[0-9]{2}\.[0-9] MB\)|^Installing collected packages" || true; \
	test -f $(VENV)/.packages
	@$(BIN)/python -c '$(HAS_COMPILER)' || { echo "   a C compiler, since this machine has none"; $(BIN)/python -m pip install --quiet --require-hashes --requirement requirements/compiler.lock; }
	@echo "   Oberth itself: its kernels are compiled, some seconds"
	@$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	@$(BIN)/python -m compileall -q src/oberth
	@touch $(STAMP)

run: $(STAMP)
	@$(BIN)/python examples/flights.py

# A test that hangs ends alone, not the run with it; what it may take includes what it builds first.
LIMIT := --timeout 480 --timeout-method signal

# Half of what the start of a JVM costs is to find and check classes: that is done once.
CLASSES := build/spark-classes.jsa
WITH_CLASSES := SPARK_SUBMIT_OPTS="-XX:SharedArchiveFile=$(abspath $(CLASSES)) -Xlog:cds=off -Xlog:cds+dynamic=off"

# Spark's tests share one session, in a process beside those of all cores: tests wait for disks and for
# each other. What it printed is shown when the others are done; all findings of a run are wanted.
PYTEST := $(BIN)/python -m pytest -q $(LIMIT)
tests = status=0; mkdir -p build; \
	test $(CLASSES) -nt $(STAMP) || $(BIN)/python -m tests.rigs.spark_classes $(CLASSES); \
	$(WITH_CLASSES) $(PYTEST) -m "$(1) and spark" $(ARGS) > build/spark-tests 2>&1 & spark=$$!; \
	trap 'kill $$spark; exit 130' INT TERM; \
	$(PYTEST) -n auto -m "$(1) and not spark" $(ARGS) || status=$$?; \
	wait $$spark || status=$$?; \
	cat build/spark-tests; exit $$status

test: $(STAMP)
	@$(call tests,not interop and not long)

# What tests/campaigns.txt takes out of `make test`: hundreds of seeds, kills in a loop.
test-long: export OBERTH_LONG := 1
test-long: $(STAMP)
	@$(call tests,long and not interop)

# Some of them, whatever their markers: make test-these ARGS="tests/test_docs.py".
test-these: $(STAMP)
	@$(PYTEST) $(ARGS)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(STAMP)
	$(BIN)/python -m benchmarks $(ARGS)

# Every turn of the benchmarks against Apache's broker, on one page: build/bench-page.md.
bench-page: $(STAMP)
	$(BIN)/python -m benchmarks.page $(ARGS)

# Peers start slowly and wait for each other: two files at a time.
interop: $(STAMP)
	$(BIN)/python -m pytest -q -m interop $(LIMIT) -n 2 --dist loadfile $(ARGS)

# The pages as a site in build/site/VERSION, with a reference of the public classes; versions that
# were built there before stay, and the pages offer the choice.
docs: $(STAMP) $(VENV)/.docs-installed
	$(BIN)/python docs/generate_site.py
	version=$$(sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml) && \
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet --strict --config-file build/site-source/mkdocs.yml --site-dir ../site/$$version
	$(BIN)/python docs/generate_site.py --list build/site
	@echo "build/site/index.html"

$(VENV)/.docs-installed: requirements/docs.lock
	$(BIN)/python -m pip install --quiet --require-hashes --requirement requirements/docs.lock
	touch $@

lock:
	$(BIN)/python -m pip install --quiet uv
	$(BIN)/uv pip compile --quiet pyproject.toml --all-extras --group dev --group data --generate-hashes --no-emit-index-url --no-header --universal --python-version 3.11 -o requirements/dev.lock
	$(BIN)/uv pip compile --quiet --group docs --constraint requirements/dev.lock --generate-hashes --no-emit-index-url --no-header --universal --python-version 3.11 -o requirements/docs.lock
	echo ziglang | $(BIN)/uv pip compile --quiet - --generate-hashes --no-emit-index-url --no-header --universal --python-version 3.11 -o requirements/compiler.lock

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache build dist
