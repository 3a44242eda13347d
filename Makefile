# Two commands:  make train   sets everything up and trains (in rehearsal where there is no GPU)
#                make test    sets everything up and runs lint, types and tests (the long ones: make soak)
# Set-up is skipped while pyproject.toml and constraints.txt are unchanged.

PYTHON ?= $(shell command -v python3.11 || command -v python3 || echo python3)
VENV   := .venv
BIN    := $(VENV)/bin

# A driver answers here: then TensorFlow is installed with the CUDA libraries it needs.
HAS_GPU := $(shell (nvidia-smi -L >/dev/null 2>&1 || test -e /proc/driver/nvidia/version || test -e /dev/dxg) && echo yes)
GPU     := $(if $(HAS_GPU),-gpu)

comma       := ,
RUN_EXTRAS  := $(if $(HAS_GPU),[gpu])
STUDIO_EXTRAS := $(if $(HAS_GPU),[gpu$(comma)studio],[studio])
TEST_EXTRAS := $(if $(HAS_GPU),[gpu$(comma)dev],[dev])

RUN_STAMP  := $(VENV)/.run$(GPU)
STUDIO_STAMP := $(VENV)/.studio$(GPU)
TEST_STAMP := $(VENV)/.test$(GPU)

TRAIN_FLAGS  ?= --init-from base --max-steps 24 --best-metric train_loss
# Whole files to a worker: what a file's tests share is made once.
PYTEST_FLAGS ?= -n auto --dist loadfile --no-loadscope-reorder
ifeq ($(HAS_GPU),)
REHEARSAL := --rehearsal --mode isolated
endif
# What `make bench` lists; the other files in benchmarks/ are parts of these.
BENCHES := cluster data engine gpu_launches learning lora model pipeline planner corpus_scan preparers recordings serving speech

.DEFAULT_GOAL := help
.PHONY: help train speak studio test lint types unit soak bench gpu-proof clean setup

help: ## this list
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-9s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

train: $(RUN_STAMP) ## set up, train the voice that comes with the package on the demo corpus, and hear it
	@$(if $(HAS_GPU),,echo "No NVIDIA driver found: rehearsing on logical CPU devices.")
	$(BIN)/python train_main.py $(TRAIN_FLAGS) $(REHEARSAL)

TEXT ?= This is the voice that comes with the package.
# As it was given: nothing in it means anything to make or to the shell.
export SAID = $(value TEXT)
speak: $(RUN_STAMP) ## set up and say TEXT="..." with the voice that comes with the package
	@$(BIN)/myxtts synthesize --text "$$SAID"

studio: $(STUDIO_STAMP) ## set up and open the studio, a page in the browser from recordings to a voice; others: FLAGS="--port 8040"
	$(BIN)/myxtts studio --open $(FLAGS)

test: $(TEST_STAMP) ## set up and run lint, types and tests (the long ones: make soak)
	$(MAKE) --no-print-directory lint types unit

setup: $(TEST_STAMP) ## set up for development only

lint: $(TEST_STAMP) ## style, owners of calls, who may import whom
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-logo

types: $(TEST_STAMP) ## mypy
	$(BIN)/mypy

unit: $(TEST_STAMP) ## the tests alone
	$(BIN)/python -m pytest -m "not soak" $(PYTEST_FLAGS)

soak: $(TEST_STAMP) ## the long tests
	$(BIN)/python -m pytest -m soak $(PYTEST_FLAGS)

bench: $(if $(NAME),$(RUN_STAMP)) ## list what can be measured; measure it: NAME=model FLAGS="--seconds 3"
ifdef NAME
	$(BIN)/python -m benchmarks.$(NAME) $(FLAGS)
else
	@awk 'FNR == 1 {name = FILENAME; gsub(/.*\/|\.py$$/, "", name); gsub(/"""/, ""); printf "  NAME=%-12s %s\n", name, $$0}' $(BENCHES:%=benchmarks/%.py)
endif

# jax and its CUDA plugin in an environment of their own: its XLA compiles for cards that are not there.
GPU_PROOF := build/gpu-proof/venv
gpu-proof: $(RUN_STAMP) $(GPU_PROOF)/.done ## compile for cards that are not there; a part of it: FLAGS="--size tiny --card 3090"
	$(BIN)/python -m benchmarks.gpu_launches
	$(BIN)/python -m benchmarks.gpu_proof --python $(GPU_PROOF)/bin/python $(FLAGS)

$(GPU_PROOF)/.done: benchmarks/gpu_constraints.txt
	$(PYTHON) -m venv $(GPU_PROOF)
	$(GPU_PROOF)/bin/python -m pip install --quiet --disable-pip-version-check -r benchmarks/gpu_constraints.txt
	@touch $@

clean: ## remove the environment and caches
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache *.egg-info

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "MyXTTS needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version 2>&1). Use: make PYTHON=/path/to/python3.11 ..." >&2; exit 2; }
	$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
	  echo "$(PYTHON) cannot make a virtual environment. On Debian and Ubuntu: apt-get install python3-venv" >&2; exit 2; }

$(RUN_STAMP): pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".$(RUN_EXTRAS)"
	@touch $@

$(STUDIO_STAMP): pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".$(STUDIO_EXTRAS)"
	@touch $@ $(RUN_STAMP)

$(TEST_STAMP): pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".$(TEST_EXTRAS)"
	@touch $@ $(RUN_STAMP)
