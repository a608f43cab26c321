# Every target sets itself up: the first one on a fresh machine makes .venv, later ones reuse it.
# PYTHON=python3.12 picks another Python (it must be 3.11 or newer); PIP_ARGS="..." is handed to pip, for
# example to take torch from an index of CPU wheels.

PYTHON ?= python3
PIP_ARGS ?=
CHROMIUM ?= $(firstword $(wildcard /usr/bin/chromium /usr/bin/chromium-browser /usr/bin/google-chrome))
PYTEST_ARGS ?=
LAB_ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
NOTEBOOKS := $(wildcard notebooks/*.ipynb)
SANITIZE := $(wildcard tests/notebooks/sanitize.cfg)

# One core per test worker and per notebook: the workers already fill the machine.
TEST_ENV := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false HF_HUB_OFFLINE=1

.PHONY: help demo test test-code test-notebooks browser lab lint venv clean clean-venv
.DEFAULT_GOAL := help

help:
	@echo "make demo     decode with AR, EAGLE-3 and SpecFit on the embedded model and print the table (no GPU needed)"
	@echo "make test     all tests but the browser's, notebooks included, in parallel"
	@echo "make lab      open JupyterLab on the notebooks"
	@echo "make lint     ruff, mypy and the import contracts"
	@echo "make browser  the tests that drive JupyterLab in Chromium"
	@echo "make clean    remove what tests, tools and builds left; make clean-venv removes .venv"

demo: $(STAMP)
	$(BIN)/specfit demo

test: test-code test-notebooks

test-code: $(STAMP)
	$(TEST_ENV) $(BIN)/python -m pytest -n auto --dist worksteal $(PYTEST_ARGS)

# A notebook's cells share a kernel, so a whole notebook goes to one worker (loadscope).
test-notebooks: $(STAMP)
ifeq ($(NOTEBOOKS),)
	@echo "no notebooks yet: nothing to run through nbval"
else
	$(TEST_ENV) $(BIN)/python -m pytest -n auto --dist loadscope --nbval --nbval-current-env --nbval-cell-timeout 300 \
	  $(if $(SANITIZE),--nbval-sanitize-with $(SANITIZE)) $(NOTEBOOKS) $(PYTEST_ARGS)
endif

browser: $(STAMP)
	@test -n "$(CHROMIUM)" || { \
	  echo "make browser: no Chromium here. On Debian: apt install chromium; elsewhere: make browser CHROMIUM=/path/to/it" >&2; \
	  exit 2; }
	CHROMIUM="$(CHROMIUM)" $(BIN)/python -m pytest tests/browser -m browser $(PYTEST_ARGS)

lab: $(STAMP)
	$(BIN)/python -m jupyter lab notebooks/ $(if $(filter 0,$(shell id -u)),--allow-root) $(LAB_ARGS)

lint: $(STAMP)
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .
	$(BIN)/python -m mypy
	PYTHONPATH=. $(BIN)/lint-imports --no-logo

venv: $(STAMP)

# The stamp says which folder the venv was made for: a copied or moved tree would run the old folder's code.
$(STAMP): pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null || { \
	  echo "make: there is no '$(PYTHON)' here. Install Python 3.11 or newer, or say which: make PYTHON=/path/to/python3" >&2; \
	  exit 2; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "make: specfit needs Python 3.11 or newer, and '$(PYTHON)' is $$($(PYTHON) -V 2>&1). Say which: make PYTHON=python3.11" >&2; \
	  exit 2; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { \
	  echo "make: '$(PYTHON)' cannot make virtual environments. On Debian or Ubuntu: apt install python3-venv" >&2; \
	  exit 2; }
	@if [ -e $(BIN)/python ] && [ -e $(BIN)/pip ] && [ "$$(cat $(VENV)/.made-for 2>/dev/null || pwd)" = "$$(pwd)" ]; then \
	  echo "bringing $(VENV) up to date"; quiet=--quiet; \
	else \
	  echo "making $(VENV) with $$($(PYTHON) -V): a few minutes the first time, nearly all of it torch"; \
	  rm -rf $(VENV) && $(PYTHON) -m venv $(VENV) && pwd > $(VENV)/.made-for; \
	fi && $(BIN)/python -m pip install $$quiet --disable-pip-version-check --no-compile -c constraints.txt $(PIP_ARGS) \
	  -e '.[workbench,dev]'
	@touch $@

# A venv that came along with a copied folder is not up to date, however new its stamp is.
ifneq ($(wildcard $(VENV)/.made-for),)
ifneq ($(shell cat $(VENV)/.made-for),$(shell pwd))
.PHONY: $(STAMP)
endif
endif

clean:
	rm -rf build dist test-artefacts .pytest_cache .hypothesis .mypy_cache .ruff_cache .import_linter_cache
	find . -path ./$(VENV) -prune -o -path ./.git -prune -o \
	  \( -name __pycache__ -o -name .ipynb_checkpoints \) -prune -exec rm -rf {} +

clean-venv:
	rm -rf $(VENV)
