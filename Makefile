# `make demo` and `make test` are all the set-up there is.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
# One stamp per extra of pyproject.toml: what is installed is not installed again.
DEV     := $(VENV)/.installed-dev
MODELS  := $(VENV)/.installed-dev-models
CLUSTER := $(VENV)/.installed-cluster
BROWSER := $(VENV)/.installed-browser
# One thread per process: oversubscribed OpenMP is several times slower on few cores.
export OMP_NUM_THREADS ?= 1
JOBS   ?= 2
PYTEST := $(BIN)/python -m pytest -n $(JOBS)
NOT_CI := real_data or browser or gpu or bench or integrations

.PHONY: help demo test test-slow test-real-data test-browser lint format types layers bench clean

help:
	@echo "demo       install, then predict, measure and train a network without and with batch norm"
	@echo "test       install, then lint, types, import levels and the tests (CI, part 1)"
	@echo "test-slow  the long tests (CI, part 2)"
	@echo "test-real-data  needs NORMSCOPE_DATA=DIR with the real data sets"
	@echo "test-browser    the pages in a headless Chromium (CHROMIUM=PATH names another)"
	@echo "bench      the benchmarks; writes benchmarks/results"
	@echo "lint, format, types, layers    one check each"

# A green run means that every test ran: none was skipped because something is not installed.
test test-slow test-real-data test-browser: export NORMSCOPE_NO_SKIPS := 1

$(DEV): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) -e '.[dev]'
	touch $@

# One after the other, also under make -j: two pips would get in each other's way.
$(MODELS): $(DEV)
	$(PIP) -e '.[dev-models]'
	touch $@

$(CLUSTER): $(MODELS)
	$(PIP) -e '.[cluster]'
	touch $@

# The browser is that of the system: playwright brings the driver, and downloads nothing.
$(BROWSER): $(DEV)
	$(PIP) playwright
	touch $@

demo: $(DEV)
	$(BIN)/python examples/demo.py

test: $(MODELS) lint types layers
	$(PYTEST) -m "not slow and not distributed and not ($(NOT_CI))"

test-slow: $(CLUSTER)
	$(PYTEST) -m "(slow or distributed) and not ($(NOT_CI))"

test-real-data: $(DEV)
	$(BIN)/python -m pytest -m real_data

CHROMIUM ?= $(shell command -v chromium || command -v chromium-browser || command -v google-chrome)
test-browser: $(BROWSER)
	@test -x "$(CHROMIUM)" || { echo "No Chromium found. Install one (Debian: apt install chromium), or give CHROMIUM=PATH."; exit 2; }
	NORMSCOPE_CHROMIUM="$(CHROMIUM)" $(BIN)/python -m pytest tests/browser -m browser

lint: $(DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(DEV)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(DEV)
	$(BIN)/mypy

layers: $(DEV)
	$(BIN)/lint-imports

bench: $(DEV)
	$(BIN)/python -m benchmarks

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
