# `make demo` and `make test` are all the set-up there is.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
# One thread per process: oversubscribed OpenMP is several times slower on few cores.
export OMP_NUM_THREADS ?= 1
JOBS   ?= 2
PYTEST := $(BIN)/python -m pytest -n $(JOBS)
NOT_CI := real_data or browser or gpu or bench

.PHONY: help demo test test-slow test-real-data test-browser lint format types layers bench clean

help:
	@echo "demo       install, then examine a network that blows up and its normalized twin"
	@echo "test       install, then lint, types, import levels and the tests (CI, part 1)"
	@echo "test-slow  the long tests (CI, part 2)"
	@echo "test-real-data  needs NORMSCOPE_DATA=DIR with the real data sets"
	@echo "test-browser    the pages in a headless Chromium (CHROMIUM=PATH names another)"
	@echo "bench      the benchmarks; writes benchmarks/results"
	@echo "lint, format, types, layers    one check each"

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

demo: $(STAMP)
	$(BIN)/python examples/demo.py

test: $(STAMP) lint types layers
	$(PYTEST) -m "not slow and not distributed and not ($(NOT_CI))"

test-slow: $(STAMP)
	$(PYTEST) -m "(slow or distributed) and not ($(NOT_CI))"

test-real-data: $(STAMP)
	$(BIN)/python -m pytest -m real_data

# The browser is that of the system: playwright brings the driver, and downloads nothing.
CHROMIUM ?= $(shell command -v chromium || command -v chromium-browser || command -v google-chrome)
test-browser: $(STAMP)
	@test -x "$(CHROMIUM)" || { echo "No Chromium found. Install one (Debian: apt install chromium), or give CHROMIUM=PATH."; exit 2; }
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt playwright
	NORMSCOPE_CHROMIUM="$(CHROMIUM)" $(BIN)/python -m pytest tests/browser -m browser

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(STAMP)
	$(BIN)/mypy

layers: $(STAMP)
	$(BIN)/lint-imports

bench: $(STAMP)
	$(BIN)/python -m benchmarks

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
