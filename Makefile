# RAGBoost: `make demo` shows it, `make test` checks it. Both set up their own .venv first.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
# The CPU build is enough for the demo and the tests. Where pip would fetch a CUDA build, point pip at
# PyTorch's CPU wheels first (PIP_FIND_LINKS or PIP_EXTRA_INDEX_URL), or set TORCH to the build you want.
TORCH  ?= torch==2.13.0
STAMP  := $(VENV)/.installed
# Processes that share the tests.
WORKERS ?= 2
# Language models: smollm2-135m (0.5 GB on disk), qwen-0.5b (2.5 GB), qwen-1.5b (7 GB).
MODELS ?= smollm2-135m
# For the demonstration and the tests, which do without a model that cannot be had.
FETCH  := $(BIN)/python -m scripts.fetch_model smollm2-135m --patience 60 || true
# Hundreds of processes import torch, vLLM or SGLang: each would compile them anew, as containers want.
unexport PYTHONDONTWRITEBYTECODE
export PIP_RETRIES ?= 5
export PIP_DEFAULT_TIMEOUT ?= 60
# uv installs in seconds what takes pip minutes, and looks where pip is told to look. pip is asked if uv fails.
export UV := $(abspath $(BIN)/uv)
ifdef PIP_FIND_LINKS
export UV_FIND_LINKS ?= $(PIP_FIND_LINKS)
endif
ifdef PIP_INDEX_URL
export UV_DEFAULT_INDEX ?= $(PIP_INDEX_URL)
endif
ifdef PIP_EXTRA_INDEX_URL
export UV_INDEX ?= $(PIP_EXTRA_INDEX_URL)
endif
install_into_venv = $(UV) pip install --python $(BIN)/python $(1) || $(BIN)/python -m pip install $(1)

.PHONY: help install demo models demo-cluster test test-all nightly lint format typecheck docs reference reference-check packages test-processes audit clean engines test-engines test-integrations

help:                ## list the targets
	@grep -E '^[a-z-]+: .*##' $(MAKEFILE_LIST) | sed -E 's/:.*##/\t/' | expand -t 18

install: $(STAMP)    ## create .venv and install RAGBoost with everything the demo and the tests need

$(STAMP): pyproject.toml requirements-dev.txt
	@echo "Installing into $(VENV), about 2 GB on disk, once; a minute or more, by your connection:"
	@echo "1 of 3: a virtual environment, and uv, which installs the rest"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -c 'import sys; sys.exit("RAGBoost needs Python 3.11 or later, got %d.%d: run make PYTHON=python3.11" % sys.version_info[:2] if sys.version_info < (3, 11) else 0)'
	@$(BIN)/python -m pip install -q -c requirements-dev.txt uv
	@echo "2 of 3: $(TORCH)"
	@$(call install_into_venv,'$(TORCH)')
	@echo "3 of 3: RAGBoost, and what the demo and the tests need"
	@$(call install_into_venv,-c requirements-dev.txt -e '.[dev]')
	@touch $@

demo: install        ## replay a RAG workload through the embedded engine, plain and boosted, and show what was saved
	@echo "The language model that answers (0.1 GB to load, 0.5 GB on disk, once; a minute at most):"
	@$(FETCH)
	@$(BIN)/ragboost demo $(ARGS)

models: install      ## fetch language models into the user's cache; MODELS names them
	@for model in $(MODELS); do $(BIN)/python -m scripts.fetch_model $$model || exit 1; done

demo-cluster: install   ## two engines, two replicas behind nginx or HAProxy, Redis; one replica is killed on the way
	@$(BIN)/python -m scripts.demo_cluster $(ARGS)

test: lint typecheck reference-check   ## lint, types, reference pages, and the tests that need no processes of their own
	@$(BIN)/python -m pytest -n $(WORKERS) -m 'not process and not real_engine' $(ARGS)

test-all: docs packages test-integrations test-processes test   ## also documentation, packages, integrations, process and benchmark tests

nightly: engines     ## what CI leaves out, some hours: fuzzing, soak, faults, fidelity
	@bash scripts/nightly.sh $(BIN)/python

lint: install        ## ruff: style and formatting
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

format: install      ## ruff: rewrite in place
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

typecheck: install   ## mypy --strict
	@$(BIN)/mypy

reference-check: install   ## the pages of docs/reference are those that the code writes
	@$(BIN)/python -m scripts.reference --check

docs: reference-check   ## build the documentation into site/, every warning is an error
	@$(BIN)/python -m sphinx -W --keep-going -q -b html docs site

reference: install   ## write the pages of docs/reference that come from the code
	@$(BIN)/python -m scripts.reference

packages: install    ## build wheel and sdist, install them on every Python here and with the lowest dependencies
	@$(BIN)/python -m scripts.check_packages

audit: install       ## known vulnerabilities of the pinned dependencies, where an advisory service answers
	@$(BIN)/python -m scripts.audit

test-processes: install   ## the tests that start processes, or run whole benchmarks and examples
	@$(FETCH)
	@$(BIN)/python -m pytest -n $(WORKERS) -m 'process and not real_engine' $(ARGS)

engines: install .venv-vllm/.installed .venv-sglang/.installed   ## install vLLM and SGLang for the CPU, 4 GB

.venv-%/.installed: scripts/engines/setup_%.sh scripts/engines/requirements-%-cpu.txt pyproject.toml
	@echo "Installing into .venv-$* (some minutes) ..."
	@PYTHON=$(BIN)/python bash $< .venv-$*

test-engines: engines   ## the tests against real vLLM and SGLang servers, and how truly the index follows them
	@$(FETCH)
	@$(BIN)/python -m pytest -n $(WORKERS) -m real_engine tests/engines $(ARGS)

.venv-integrations/.installed: requirements-integrations.txt | install
	@echo "Installing LiteLLM, Ray and others into .venv-integrations (1.2 GB) ..."
	@$(BIN)/python -m venv --clear .venv-integrations
	@bash scripts/install_pins.sh .venv-integrations/bin/python $<
	@touch $@

test-integrations: .venv-integrations/.installed   ## the tests of what does not install beside the engine: LiteLLM, Ray, OpenAILike
	@EMBEDDED_ENGINE_PYTHON=$(abspath $(BIN)/python) .venv-integrations/bin/python -m pytest -m own_environment \
		tests/integrations tests/test_examples.py tests/test_extras.py tests/test_imports.py $(ARGS)

clean:               ## remove .venv and caches
	rm -rf $(VENV) .venv-vllm .venv-sglang .venv-integrations .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist site
