# Each target sets up .venv from the pinned versions by itself first.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
# As flows/cli/app.py does, for what tests train in their own process.
export GOMP_SPINCOUNT ?= 3000
DATA ?= data/wordnet
HOME_DIR ?= .xc

.PHONY: run test test-fast check bench bench-claims sbom pins clean

$(VENV)/.ready: constraints.txt constraints-cuda.txt pyproject.toml
	$(PYTHON) -m venv $(VENV)
	# From hashes pip takes the index's torch before a build in a folder of its own (find-links), for CPUs alone, say.
	sed -n '/^torch==/,/[^\\]$$/p' constraints.txt > $(VENV)/torch.txt
	$(BIN)/pip install --quiet --no-deps --no-index --require-hashes -r $(VENV)/torch.txt 2> $(VENV)/torch.log || true
	$(BIN)/pip install --quiet --no-deps --require-hashes -r constraints.txt
	# The index's torch for Linux needs CUDA's libraries; a build for CPUs alone lacks nothing now.
	$(BIN)/pip check > $(VENV)/missing.log || $(BIN)/pip install --quiet --no-deps --require-hashes -r constraints-cuda.txt
	$(BIN)/pip install --quiet --no-deps --no-build-isolation --editable .
	$(BIN)/pip check
	touch $@

$(DATA)/dataset.json: | $(VENV)/.ready
	$(BIN)/xc data wordnet $(DATA)

## run: the main job on real data: fetch, check, prepare, train, evaluate, register; ends with predictions
run: $(VENV)/.ready $(DATA)/dataset.json
	$(BIN)/xc run --data $(DATA) --preset cpu-quick --home $(HOME_DIR)

## test: every test, three files at a time: some of them wait
test: $(VENV)/.ready
	$(BIN)/python -m pytest --numprocesses 3 --dist loadfile --no-loadscope-reorder

## test-fast: units and trainings of toys, which start no server and no command, for while one writes
test-fast: $(VENV)/.ready
	$(BIN)/python -m pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder tests/unit tests/training

## check: lint, types, import contracts
check: $(VENV)/.ready
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

## bench: what is measured with WordNet alone, a table a question (docs/performance.md names the others); hours
QUESTIONS := rates loop frozen_layers classifier_step clustering scale refresh
bench: run
	for question in $(QUESTIONS); do $(BIN)/python -m benchmarks.bench_$$question || exit 1; done
	$(BIN)/python -m benchmarks.bench_search 1300000 2048 64
	$(BIN)/python -m benchmarks.bench_prepare $(DATA)
	$(BIN)/python -m benchmarks.bench_storage $(DATA) $(HOME_DIR)
	$(BIN)/python -m benchmarks.bench_query $(HOME_DIR)
	$(BIN)/python -m benchmarks.bench_vector_bits $(HOME_DIR)
	$(BIN)/python -m benchmarks.bench_serving $(HOME_DIR)
	$(BIN)/python -m benchmarks.bench_selection $(HOME_DIR)
	$(BIN)/python -m benchmarks.bench_thresholds $(HOME_DIR)

## bench-claims: the papers' claims on WordNet, but those about graphs (docs/methods.md); hours, and goes on where it was stopped
CLAIMS := 1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,23,24,25,26
bench-claims: $(VENV)/.ready $(DATA)/dataset.json
	$(BIN)/xc prepare --data $(DATA) --home $(HOME_DIR)
	$(BIN)/python -m benchmarks.claims $(HOME_DIR) --claims $(CLAIMS)

## sbom: the bill of materials of a release, sbom.cdx.json (CycloneDX 1.6), from the pins, without the extra dev
sbom: $(VENV)/.ready
	$(BIN)/python tools/sbom.py > sbom.cdx.json

## pins: constraints.txt and constraints-cuda.txt anew, with the sha256 of every file; PINS="NAME==VERSION ..." upgrades; needs uv on the path
pins: $(VENV)/.ready
	$(BIN)/python -m tools.pin_hashes $(PINS)

## clean: removes .venv, which the next target sets up anew; homes and data stay
clean:
	rm -rf $(VENV)
