# Two commands on a fresh machine with Python and make:
#   make quickstart   sets everything up, then trains, certifies and serves
#   make test         sets everything up, then runs the tests

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: help setup quickstart test test-fast lint format types docs wheel lock licences benchmarks soak fair sizing attacks clean

help:
	@echo "make quickstart   set up, train, certify, report, export, serve, request"
	@echo "make test         set up, run the tests"
	@echo "make test-fast    the unit tests alone"
	@echo "make lint         ruff check and format check"
	@echo "make types        mypy on the package as installed"
	@echo "make docs         build the documentation into site/, check its links"
	@echo "make wheel        build the wheel, certify with it in a fresh venv"
	@echo "make lock         fetch the newest versions allowed, with their hashes"
	@echo "make licences     list the licences of all dependencies"
	@echo "make benchmarks   print the ratios of all benchmarks (slow)"
	@echo "make soak         look for leaks in a server; kill servers under a client"
	@echo "make attacks      attack thousands of images within their certified radii"
	@echo "make fair         short requests beside long ones, and what slices cost"
	@echo "make sizing       the tables of docs/sizing.md"

setup: $(VENV)/.installed

$(VENV)/.installed: setup.py requirements.lock
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet --no-deps --require-hashes -r requirements.lock
	$(BIN)/pip install --quiet -e ".[dev]"
	@touch $@

quickstart: setup
	$(BIN)/python examples/quickstart.py

# In the order of the folders: the long files of tests/e2e first, so that the
# short ones of tests/unit fill both workers to the end.
PYTEST := $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

test: setup
	$(PYTEST)

test-fast: setup
	$(PYTEST) tests/unit

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The rooms become one package only when installed: so that is what is checked.
types: setup
	rm -rf build/types build/lib
	$(BIN)/pip install --quiet --no-deps --target build/types .
	cd build/types && ../../$(BIN)/mypy --config-file ../../pyproject.toml \
		--python-executable ../../$(BIN)/python -p rs_keras

# The variable keeps the theme from printing news of its own.
docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	$(BIN)/python docs/site/links.py site

wheel: setup
	PYTHON=$(PYTHON) BIN=$(BIN) tests/e2e/wheel/check

# The address of the package index that lists the files' hashes:
#   make lock INDEX=ADDRESS
INDEX ?=
FREEZE := build/lock/bin/pip freeze --all \
	--exclude pip --exclude setuptools --exclude rs-keras

lock:
	@test -n "$(INDEX)" || { echo "make lock needs INDEX=ADDRESS"; exit 1; }
	rm -rf build/lock
	$(PYTHON) -m venv build/lock
	build/lock/bin/pip install --quiet --upgrade pip
	build/lock/bin/pip install --quiet .
	$(FREEZE) > build/lock/run
	build/lock/bin/pip install --quiet ".[dev]"
	$(FREEZE) > build/lock/all
	build/lock/bin/python .ci/lock.py $(INDEX) build/lock/run build/lock/all \
		> build/lock/requirements.lock
	mv build/lock/requirements.lock requirements.lock

licences: setup
	mkdir -p build
	$(BIN)/python .ci/licences.py > build/dependencies.md
	mv build/dependencies.md docs/dependencies.md

benchmarks: setup
	for file in benchmarks/*.py; do $(BIN)/python $$file; done

soak: setup
	$(BIN)/python benchmarks/server.py --soak
	$(BIN)/python benchmarks/fleet_soak.py --examples 10000

attacks: setup
	$(BIN)/python tests/kits/attacked_certificates.py dense 5000
	$(BIN)/python tests/kits/attacked_certificates.py lenet 500

fair: setup
	$(BIN)/python benchmarks/server.py --fair

sizing: setup
	$(BIN)/python benchmarks/sizing.py

clean:
	rm -rf build dist *.egg-info quickstart site
