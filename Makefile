# Two commands do everything on a fresh machine with Python (and venv) and make:
#   make run     a network of 1024 neurons x 120 layers, end to end
#   make test    the tests
# DATA is the data folder of the benchmarks, OUT where their records and tables go.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check

DATA ?= $(or $(SPDNN_DATA),data)
OUT ?= results/bench-$(shell git describe --always --abbrev=12 --dirty=+ 2>/dev/null || echo here)

# Processes that the tests are dealt out to, whole files at a time, in the order of tests/conftest.py.
WORKERS ?= 2
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

.PHONY: run test test-all test-pythons check format bench bench-cpu bench-any gpu-report docs results clean help

help:
	@echo "make run        1024 neurons x 120 layers, end to end"
	@echo "make test       the tests (under 10 minutes on two cores)"
	@echo "make test-all   the slow tests, too"
	@echo "make test-pythons  a few tests on each other Python that is found"
	@echo "make check      ruff, formatting, types"
	@echo "make format     format the code"
	@echo "make bench      1024 neurons at all depths beside other libraries (under 10 minutes)"
	@echo "make docs       the pages of docs and the reference as HTML, in docs/_build"
	@echo "make results    the tables, plots and pages of the kept records, made again"
	@echo "make bench-cpu  the CPU engine against NumPy's sgemm and other libraries; text against pyarrow"
	@echo "make bench-any  skewed layers, parallel branches, few features: what each idea gives"
	@echo "make gpu-report the tables of docs/gpu.md: machine code of the GPU kernels, counts"
	@echo "make clean      remove the virtual environment and caches"

run: $(VENV)/with-demo
	$(BIN)/spdnn run --neurons 1024 --layers 120 --data data

test: $(VENV)/with-test
	$(PYTEST) -m "not slow"

test-all: $(VENV)/with-test
	$(PYTEST)

test-pythons:
	.ci/test-pythons

check: $(VENV)/with-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/with-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/with-bench
	$(BIN)/spdnn bench --neurons 1024 --layers 120,480,1920 --engines cpu --modes edges,merge \
		--rivals all --rival-seconds 3 --data '$(DATA)' --out '$(OUT)/records'
	$(BIN)/spdnn report '$(OUT)/records' --out '$(OUT)'

# Each machine has a folder in results, with its records in records.
results: $(VENV)/with-plot
	for folder in results/*/records; do \
		$(BIN)/spdnn report "$$folder" --out "$${folder%/records}" || exit; \
	done

gpu-report: $(VENV)/with-gpu-proof
	$(BIN)/python -m tools.gpu_report docs/gpu.md

# The source folder is the root of the repository: see docs/conf.py. Warnings are errors.
docs: $(VENV)/with-docs
	$(BIN)/sphinx-build -W --keep-going --quiet -c docs . docs/_build
	@echo "docs/_build/docs/index.html"

bench-cpu: $(VENV)/with-bench
	$(BIN)/python -m pytest benchmarks -q --ignore benchmarks/test_any_network.py --ignore benchmarks/test_few_features.py

bench-any: $(VENV)/with-bench
	$(BIN)/python -m pytest benchmarks/test_any_network.py benchmarks/test_few_features.py -q

# One marker for each extra that is installed; a changed pyproject.toml installs it again.
$(VENV)/with-%: pyproject.toml | $(BIN)/python
	$(INSTALL) --editable '.[$*]'
	@touch $@

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

clean:
	rm -rf $(VENV) .venvs .pytest_cache .hypothesis .mypy_cache .ruff_cache docs/_build
	find spdnn tests -name __pycache__ -prune -exec rm -rf {} +
