# Everything a newcomer needs: make demo, make test, make lab. All of it lives in .venv; a second run reuses what is there.
PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
PIP := $(PY) -m pip --disable-pip-version-check install --quiet -c constraints.txt
export HF_HUB_DISABLE_TELEMETRY = 1

.DEFAULT_GOAL := help
.PHONY: help demo test lab export run site check clean

help:
	@echo 'make demo     set up .venv, fetch the default model, generate for a batch of chat prompts'
	@echo 'make test     sync check, every claim, every chapter, every test'
	@echo 'make lab      JupyterLab on the index'
	@echo 'make export   the package, the tests and README.md from the notebooks'
	@echo 'make run      run all notebooks in place and store their outputs'
	@echo 'make site     all notebooks as web pages in _site/, widgets alive, no kernel and no internet needed'
	@echo 'make clean    remove .venv and what is built'

# Some systems split venv off from Python; then fetch it as a system package, or from PyPI where there is no apt.
$(VENV)/bin/pip:
	@$(PYTHON) -c 'import sys; v = sys.version_info; v >= (3, 10) or sys.exit(f"Python 3.10 or newer is needed, this is {v[0]}.{v[1]}: make PYTHON=…")'
	@echo 'setting up .venv'
	@$(PYTHON) -m venv $(VENV) >/dev/null 2>&1 || { rm -rf $(VENV); \
	  apt-get update -qq && apt-get install -y -qq python3-venv >/dev/null && $(PYTHON) -m venv $(VENV); } || { rm -rf $(VENV); \
	  $(PYTHON) -m pip install --quiet --user virtualenv && $(PYTHON) -m virtualenv --quiet $(VENV); }
	@$(PIP) --upgrade pip

$(VENV)/.runtime: settings.ini setup.py constraints.txt | $(VENV)/bin/pip
	@echo 'installing llm_infer (PyTorch is the large part)'
	@$(PIP) -e .
	@touch $@

$(VENV)/.dev: $(VENV)/.runtime
	@echo 'installing what the notebooks and tests need'
	@$(PIP) -e '.[dev]'
	@touch $@

demo: $(VENV)/.runtime
	@$(PY) -m llm_infer demo

test: $(VENV)/.dev
	@$(PY) tools/test.py

lab: $(VENV)/.dev
	@$(PY) -m jupyterlab index.ipynb

export: $(VENV)/.dev
	@$(PY) tools/export.py

run: $(VENV)/.dev
	@$(PY) tools/run.py

site: $(VENV)/.dev
	@$(PY) tools/site_pages.py

clean:
	rm -rf $(VENV) build dist _docs _site *.egg-info .pytest_cache .hypothesis
