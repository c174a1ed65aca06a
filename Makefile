# make demo    watch bfloat16 stall and Collage cure it (ARGS="--steps 150 --exit" for a short one)
# make test    all tests, by two workers (ARGS="tests/numerics -k two_sum" for some, ARGS="-n 0 --pdb" by none)
# make check   formatter, linter, strict types
PYTHON ?= python3
VENV ?= .venv
ARGS ?=

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
FILES := pyproject.toml constraints.txt hatch_build.py $(wildcard client/roundoff/kernels/cpu/build.py client/roundoff/kernels/cpu/source/*)

.PHONY: demo test check format clean

demo: $(VENV)/.demo
	@$(BIN)/roundoff demo $(ARGS)

test: $(VENV)/.test
	@$(BIN)/python scripts/chromium.py
	@$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder $(ARGS)

check: $(VENV)/.test
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(VENV)/.test
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

$(VENV)/bin/python:
	@sh scripts/preconditions.sh $(PYTHON)
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: $(FILES) | $(VENV)/bin/python
	@echo "installing roundoff and what it needs into $(VENV) (PyTorch is the large one) …"
	@$(PIP) --editable '.[all]'
	@touch $@

$(VENV)/.test: $(FILES) | $(VENV)/bin/python
	@echo "installing roundoff and what its tests need into $(VENV) (PyTorch is the large one) …"
	@$(PIP) --editable '.[all,dev]'
	@touch $@ $(VENV)/.demo

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
