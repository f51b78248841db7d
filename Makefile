# Every target sets up what it needs in .venv and says what it does.
PYTHON ?= python3
VENV ?= .venv
CONSTRAINTS ?= constraints.txt
BIN := $(VENV)/bin
SOURCES := $(shell find src/lengthen/kernels/csrc -name '*.cpp' -o -name '*.hpp' 2>/dev/null)
export OMP_NUM_THREADS ?= 1

.PHONY: demo test lint acceptance docs figures package clean
.DEFAULT_GOAL := help

help:
	@echo 'make demo        run the demonstration, minutes on a CPU; opens nothing, writes demo-run/report.html'
	@echo 'make test        run the tests'
	@echo 'make lint        ruff, the type checker, the import order'
	@echo 'make acceptance  run the long checks'
	@echo 'make docs        build the site into build/site; a warning or a dead link fails it'
	@echo 'make figures     run the demonstration and the toys, and draw the pages'\'' figures again'
	@echo 'make package     build the sdist and from it the wheel, into dist/'

$(VENV)/.installed: pyproject.toml $(CONSTRAINTS) CMakeLists.txt $(SOURCES)
	@echo 'Setting up $(VENV): PyTorch as in $(CONSTRAINTS), lengthen with its compiled kernels, tools for tests and docs.'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint $(CONSTRAINTS) torch numpy
	$(BIN)/python -m pip install --quiet --constraint $(CONSTRAINTS) --editable '.[test,fla,docs]'
	@touch $@

demo: $(VENV)/.installed
	@echo 'Running the demonstration; it writes the run folder demo-run.'
	$(BIN)/lengthen demo --out demo-run --overwrite

test: $(VENV)/.installed
	@echo 'Running the tests on two processes.'
	$(BIN)/python -m pytest -n 2 --dist loadfile -m 'not acceptance'

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

acceptance: $(VENV)/.installed
	$(BIN)/python -m pytest -m acceptance

docs: $(VENV)/.installed
	@echo 'Building the site into build/site.'
	$(BIN)/python docs/build_site.py

figures: demo
	@echo 'Drawing docs/figures.'
	$(BIN)/python docs/draw_figures.py demo-run

package: $(VENV)/.installed
	@echo 'Building dist/.'
	$(BIN)/python -m build

clean:
	rm -rf $(VENV) build dist demo-run
