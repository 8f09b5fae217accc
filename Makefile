# Two commands for a newcomer: `make train` and `make test`. Each makes its own environment first.
PYTHON ?= python3
VENV ?= .venv
RUN = $(VENV)/bin/python
PIP = $(RUN) -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: train test oracles lint types bench clean

train: $(VENV)/with-train  ## trains on tiny Shakespeare; again, it resumes
	$(RUN) -m experiments.train --config=configs/shakespeare.py --workdir=runs/shakespeare

test: $(VENV)/with-dev  ## all tests that need nothing but this package
	$(RUN) -m pytest

oracles: $(VENV)/with-oracles  ## tests against PyTorch and transformers
	$(RUN) -m pytest -m oracle tests/test_oracles.py

lint: $(VENV)/with-dev
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .

types: $(VENV)/with-dev
	$(VENV)/bin/ty check --python $(VENV)

bench: $(VENV)/with-oracles  ## our step beside PyTorch's and plain Linen's
	$(RUN) -m experiments.bench

clean:
	rm -rf $(VENV)

$(VENV)/pip:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "transformer_jax needs Python 3.11 or newer; choose one: make PYTHON=python3.12 ..."; exit 2; }
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/with-train: $(VENV)/pip pyproject.toml constraints.txt
	@echo "installing into $(VENV): once, some minutes ..."
	$(PIP) -e '.[train]'
	@touch $@

$(VENV)/with-dev: $(VENV)/with-train
	$(PIP) -e '.[train,dev]'
	@touch $@

$(VENV)/with-oracles: $(VENV)/with-dev
	$(PIP) 'torch==2.13.0'
	$(PIP) -e '.[train,dev,oracles]'
	@touch $@
