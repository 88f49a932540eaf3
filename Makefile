# make course   set up, run every lesson on a 4-rank MPI cluster      make lab    set up, open JupyterLab
# make test     set up, run all tests (what CI runs)                  make help   everything else
PYTHON ?= python3
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
BIN := .venv/bin
READY := .venv/.ready
RANKS := 1 2 3 4
# So many files of tests run at once, as most of them wait, and so many lessons; JOBS=0 LESSONS=0: one by one.
JOBS := 3
LESSONS := 2
BESIDE := --dist loadfile --no-loadscope-reorder --durations=15
RANK_TESTS := tests/ranks packages/torch_mpi4py/tests/ranks
# Ranks need no other plugins of pytest, and each would import them for seconds.
ALONE := PYTEST_DISABLE_PLUGIN_AUTOLOAD=1

.DEFAULT_GOAL := help
.PHONY: help setup course lab test test-fast test-slow check format notebooks bench clean lock

help:
	@echo 'make course      set up, run every lesson on a 4-rank MPI cluster, write build/'
	@echo 'make lab         set up, open JupyterLab on my_course/, your own copy of the lessons'
	@echo 'make test        set up, run all tests (test-fast: without the lessons)'
	@echo 'make test-slow   the rare cases that make test leaves out (tests marked slow)'
	@echo 'make check       format, lint, types, layers, notebook drift: seconds'
	@echo 'make notebooks   build the lessons from course/lessons (one: make notebooks LESSON=02)'
	@echo 'make bench       run the benchmarks into benchmarks/results'
	@echo 'make clean       stop clusters that were left behind, remove build/'
	@echo 'make lock        rewrite constraints.txt from what is installed'
	@echo
	@echo 'Another build of PyTorch: make setup TORCH_INDEX=https://download.pytorch.org/whl/cu130'
	@echo 'Another Python (3.11 or newer): make setup PYTHON=python3.12'

setup: $(READY)

# torch first and alone: its index serves the CPU build, and nothing else is looked up there.
$(READY): constraints.txt pyproject.toml course/pyproject.toml packages/mpi_classroom/pyproject.toml packages/torch_mpi4py/pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo 'This course needs Python 3.11 or newer; $(PYTHON) is older. Try: make setup PYTHON=python3.12'; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv || \
	  { rm -rf .venv; echo 'Python cannot make a virtual environment. On Debian or Ubuntu: sudo apt install python3-venv'; exit 1; }
	@echo 'Installing PyTorch (about 200 MB). If $(TORCH_INDEX) does not answer, the build that pip finds elsewhere is used.'
	$(BIN)/python -m pip install --disable-pip-version-check --no-deps --retries 1 --timeout 20 \
	  --extra-index-url $(TORCH_INDEX) --constraint constraints.txt torch
	@echo 'Installing everything else (about 150 MB).'
	$(BIN)/python -m pip install --disable-pip-version-check --requirement constraints.txt
	$(BIN)/python -m pip install --disable-pip-version-check --no-deps --no-build-isolation \
	  --editable packages/torch_mpi4py --editable packages/mpi_classroom --editable . --editable course
	@touch $(READY)

course: setup
	$(BIN)/course run

lab: setup
	$(BIN)/course lab

test: test-fast
	$(BIN)/python -m pytest -n $(LESSONS) $(BESIDE) --nbval notebooks

test-fast: setup
	$(BIN)/python -m pytest -n $(JOBS) $(BESIDE) tests packages --ignore=tests/ranks --ignore=packages/torch_mpi4py/tests/ranks
	@set -e; for n in $(RANKS); do \
	  echo "tests/ranks, $$n at once"; $(ALONE) $(BIN)/python -m mpi_classroom.launch $$n -m pytest -p pytest_timeout -q $(RANK_TESTS); done

# What takes long and rarely finds anything.
test-slow: setup
	$(BIN)/python -m pytest -m slow tests packages --ignore=tests/ranks --ignore=packages/torch_mpi4py/tests/ranks
	$(ALONE) $(BIN)/python -m mpi_classroom.launch 2 -m pytest -p pytest_timeout -q -m slow $(RANK_TESTS)

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m course.tools.lint

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

notebooks: setup
	$(BIN)/python -m course.tools.build $(LESSON)

bench: setup
	@set -e; for file in benchmarks/[a-z]*.py; do name=$$(basename $$file .py); \
	  test $$name = harness && continue; echo "== $$name"; \
	  $(BIN)/python -m benchmarks.$$name --json benchmarks/results/$$name.json; done

clean:
	@test ! -x $(BIN)/course || $(BIN)/course clean
	rm -rf build

lock: setup
	$(BIN)/python -m course.tools.pins > constraints.new && mv constraints.new constraints.txt
