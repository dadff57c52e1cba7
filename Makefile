# From a fresh clone: `make train` trains a team, `make test` runs all checks. Both first set up .venv, which needs
# Python 3.11 or newer and nothing else; setting up is skipped while the lock files and pyproject.toml are unchanged.

PYTHON ?= python3
WORKERS ?= 3
BIN := .venv/bin
RUN_READY := .venv/.ready
DEV_READY := .venv/.ready-dev

# If this is set, every process compiles all of JAX's modules again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: train test suite slow lint docs setup setup-dev lock clean

train: $(RUN_READY)
	$(BIN)/covey train

# Linting runs beside the suite and ends long before it, so pytest's summary is the last line.
test: $(DEV_READY)
	@$(MAKE) --no-print-directory -j 2 lint suite

suite: $(DEV_READY)
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

slow: $(DEV_READY)
	COVEY_TESTS_OPTIMISED=1 $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m slow -o faulthandler_timeout=3600

lint: $(DEV_READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The site, in build/docs/index.html. tests/test_docs.py builds it too, so a warning fails `make test`.
docs: $(DEV_READY)
	$(BIN)/python -m sphinx -b html -W --keep-going -q docs build/docs
	@echo "open build/docs/index.html"

setup: $(RUN_READY)
setup-dev: $(DEV_READY)

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "covey needs Python 3.11 or newer; $(PYTHON) is `$(PYTHON) --version`. Try: make PYTHON=python3.11 $(MAKECMDGOALS)" >&2; exit 1; }
	$(PYTHON) -m venv .venv

# Modules are compiled on first import, and most are never imported.
PIP := $(BIN)/python -m pip install --disable-pip-version-check --quiet --no-compile

$(RUN_READY): requirements.lock pyproject.toml | $(BIN)/python
	$(PIP) -r requirements.lock
	$(PIP) --no-deps --editable .
	@touch $@

$(DEV_READY): requirements.lock requirements-dev.lock pyproject.toml | $(BIN)/python
	$(PIP) -r requirements.lock -r requirements-dev.lock
	$(PIP) --no-deps --editable .
	@touch $(RUN_READY) $@

# Resolves pyproject.toml again, in a separate environment, so that nothing superfluous is pinned.
lock:
	rm -rf .venv-lock && $(PYTHON) -m venv .venv-lock
	.venv-lock/bin/python -m pip install --disable-pip-version-check --quiet . 'pandas<3'
	.venv-lock/bin/python -m pip freeze --exclude covey > .venv-lock/run
	.venv-lock/bin/python -m pip install --disable-pip-version-check --quiet '.[dev,docs,wandb,tensorboard,mlflow]'
	.venv-lock/bin/python -m pip freeze --exclude covey > .venv-lock/all
	{ sed -n 1p requirements.lock; cat .venv-lock/run; } > .venv-lock/new && mv .venv-lock/new requirements.lock
	{ sed -n 1,2p requirements-dev.lock; grep -vxFf .venv-lock/run .venv-lock/all; } > .venv-lock/new \
		&& mv .venv-lock/new requirements-dev.lock
	rm -rf .venv-lock build

clean:
	rm -rf .venv .venv-lock build docs/generated .cache .pytest_cache .mypy_cache .ruff_cache .hypothesis
