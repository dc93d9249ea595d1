# make demo   a finished report from the embedded data          make lint   style and types
# make test   lint, types and the whole test suite              make docs   the documentation, gallery run
# make clean  remove what make made
#
# Each works from a fresh clone: the first run makes .venv and installs into it, later runs find it as it is.

PYTHON ?= python3
# Sets in the tests and scripts are small: more threads cost more than they give, most of all on a busy machine.
export OMP_NUM_THREADS ?= 1
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DEMO_OUT ?= demo-output

.PHONY: demo test lint docs install clean

demo: $(STAMP)
	$(BIN)/bpa demo --out $(DEMO_OUT)

test: lint
	$(BIN)/python -m pytest -m "not study" --durations=10

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --group docs
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs docs/_build/html
	@echo "docs/_build/html/index.html"

install: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "bpa needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) -V 2>&1). Try: make PYTHON=python3.11"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt pip
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[all]' --group dev
	@touch $@

clean:
	rm -rf docs/_build docs/gallery docs/reference/generated $(VENV) .venv-core $(DEMO_OUT) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage htmlcov
