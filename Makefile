# `make run` and `make test` need Python 3.10 to 3.13 and a package registry, nothing else: each creates .venv if it is
# missing or the pins have changed. A second call installs nothing.
PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3.13 || command -v python3.10 || echo python3)
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PIP := $(BIN)/python -m pip install --disable-pip-version-check -q -c constraints.txt

.PHONY: run test fuzz lint types docs bench

run: ARGS ?= --model=DiffGRM,SASRec --preset=item,item-small
run: $(READY)
	$(BIN)/python run_recbole_diffgrm.py $(ARGS)

test: $(READY)
	$(BIN)/python -m pytest -n 2 $(ARGS)

# Generated input for SECONDS (600); the SEED is that of the day if none is given. ONLY=yaml: tests with this in their name
fuzz: $(READY)
	$(BIN)/python -m tests.fuzz $(if $(SECONDS),--seconds $(SECONDS)) $(if $(SEED),--seed $(SEED)) $(if $(ONLY),--only $(ONLY))

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/mypy

# The reference of all keys: docs/configuration.md and properties/schema.json
docs: $(READY)
	$(BIN)/python -m recbole_diffgrm.cli.reference

# One training epoch against stock RecBole, memory at 10 M interactions, semantic IDs of up to 1 M items, training steps
# and decoding of DiffGRM and the paper's other models. DATA is a folder with Amazon_Beauty in it, CORNAC (optional) the
# python of an environment with torch, transformers and cornac. Takes up to 21 GiB; BATCH=128 makes training steps smaller.
DATA ?= dataset
bench: $(READY)
	$(BIN)/python benchmarks/epoch.py --data_path $(DATA)
	$(BIN)/python benchmarks/memory.py
	$(BIN)/python benchmarks/tokenizer.py
	$(BIN)/python benchmarks/train_step.py --data_path $(DATA) --model all --cases $(if $(CORNAC),--cornac $(CORNAC)) $(if $(BATCH),--batch $(BATCH))
	$(BIN)/python benchmarks/decode.py --data_path $(DATA) --model all --catalogues $(if $(CORNAC),--cornac $(CORNAC))

# RecBole without its pins: ray, which it hardly uses, has no wheels for Python 3.12 and later.
$(READY): constraints.txt pyproject.toml $(wildcard requirements/*.txt)
	$(PYTHON) -m venv --clear $(VENV)
	$(PIP) -r requirements/base.txt -r requirements/text.txt -r requirements/tune.txt -r requirements/serve.txt -r requirements/dev.txt
	$(PIP) --no-deps recbole==1.2.1 -e .
	touch $@
