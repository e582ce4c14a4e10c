# Two commands for a fresh machine:
#   make test    environment, lint, format, types, tests
#   make demo    a small environment, then trainings, figures and a report into out/
# and two for the documentation:
#   make docs    environment, then the site into site/
#   make serve   the site on a local port, built again at each change
# and one for the playground (its tests are part of make test wherever Chromium is installed):
#   make browser-test   environment, then the playground's page in a real Chromium
# The environment is .venv, made once and again only when pyproject.toml or constraints.txt change.
# The demo needs a few packages only: where there is no .venv yet it makes .venv-demo, and has uv make it if that is installed.

PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11 python3.10 python; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null && echo $$p && break; done)
BIN := .venv/bin
READY := .venv/.ready
PAGES := --isolated --line-length 88 README.md $(wildcard docs/*.md docs/guides/*.md)
DEMO := $(if $(wildcard $(READY)),.venv,.venv-demo)
DEMO_NEW := .venv-demo/.ready
DEMO_READY := $(if $(wildcard $(READY)),$(READY),$(DEMO_NEW))

.PHONY: help test lint types suite browser-test demo docs serve format clean

help:
	@sed -n '2,8s/^#   make/make/p' Makefile

test: lint types suite

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/ruff format --check $(PAGES)

types: $(READY)
	$(BIN)/mypy

# One thread a worker: the workers already share the cores. Huge pages save dense plans in float64 a fifth of their time.
suite: $(READY)
	THP_MEM_ALLOC_ENABLE=1 OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 $(BIN)/python -m pytest

# Without a Chromium there is nothing to collect, and pytest would say no more than that.
browser-test: $(READY)
	@$(BIN)/python -c 'import sys; from tests.browsers import CHROMIUM, NAMES; sys.exit(CHROMIUM is None and \
		"none of these browsers is installed: " + ", ".join(NAMES) + " (Debian: apt-get install chromium)")'
	OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 $(BIN)/python -m pytest -n 0 tests/explore/test_browser.py

demo: $(DEMO_READY)
	@$(DEMO)/bin/python -m sinksort.paper demo --out out

docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

serve: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/ruff format $(PAGES)

$(READY): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "sinksort needs Python 3.10 or newer: install one, or run make PYTHON=/path/to/python3"; exit 1; }
	@echo "Setting up .venv with $$($(PYTHON) --version); the first time this takes a few minutes."
	@$(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install -qq --constraint constraints.txt --editable '.[dev]'
	@touch $(READY)

$(DEMO_NEW): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "sinksort needs Python 3.10 or newer: install one, or run make PYTHON=/path/to/python3"; exit 1; }
	@echo "Setting up .venv-demo with $$($(PYTHON) --version): torch, NumPy, Numba, matplotlib, scikit-learn, rich and typer."
	@echo "torch is a large download. On a machine without a GPU, PIP_INDEX_URL and UV_INDEX_URL can name an index of its CPU builds."
	@if command -v uv > /dev/null; then \
		uv venv --quiet --python "$(PYTHON)" .venv-demo && \
		uv pip install --python .venv-demo/bin/python --constraint constraints.txt --editable '.[paper,sklearn]'; \
	else \
		$(PYTHON) -m venv .venv-demo && \
		.venv-demo/bin/python -m pip install --progress-bar on --constraint constraints.txt --editable '.[paper,sklearn]' | \
			grep --line-buffered -v '^Requirement already\|^Looking in\|^  '; \
		.venv-demo/bin/python -c 'import sinksort.paper.demo' ; \
	fi
	@touch $(DEMO_NEW)

clean:
	rm -rf .venv .venv-demo out site build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
