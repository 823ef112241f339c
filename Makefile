# Two commands on a fresh machine: `make run` and `make test`. Both install into .venv from this
# folder's own files (requirements/dev.lock, hashes checked) the first time they are called.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: run test bench interop lint lock clean

$(STAMP): requirements/dev.lock pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed, found " + sys.version.split()[0] if sys.version_info < (3, 11) else 0)'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip setuptools
	$(BIN)/python -m pip install --quiet --require-hashes --requirement requirements/dev.lock
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	touch $(STAMP)

run: $(STAMP)
	$(BIN)/python examples/flights.py

# What needs no JVM runs on every core; Spark's tests share one session and come after it.
test: $(STAMP)
	$(BIN)/python -m pytest -q -n auto -m "not spark and not interop" $(ARGS)
	$(BIN)/python -m pytest -q -m "spark and not interop" $(ARGS)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(STAMP)
	$(BIN)/python -m benchmarks $(ARGS)

interop: $(STAMP)
	$(BIN)/python -m pytest -q -m interop $(ARGS)

lock:
	$(BIN)/python -m pip install --quiet uv
	$(BIN)/uv pip compile --quiet pyproject.toml --all-extras --group dev --group data --generate-hashes --no-emit-index-url --no-header --universal --python-version 3.11 -o requirements/dev.lock

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache build dist
