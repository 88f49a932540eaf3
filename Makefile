# make course   set up, run all lessons' cores on a 4-rank MPI cluster      make lab    set up, open JupyterLab
# make test     set up, run the tests, 8 minutes (CI: make test-all)  make help   everything else
PYTHON ?= python3
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
# Another place to install to, for example VENV="$$CONDA_PREFIX".
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
LOCK := requirements.lock
# pip compiles what it installs file by file; compileall does that on all cores, at the end.
PIP := $(BIN)/python -m pip install --disable-pip-version-check --no-compile
# uv installs the same files in a third of the time, where it is there.
LOCKED := $(if $(shell command -v uv),uv pip install --python $(BIN)/python,$(PIP))
# The version of PyTorch is a comment in the lock: its build is yours to choose, so it has no digest there.
TORCH := $(shell sed -n 's/^\# \(torch==.*\)/\1/p' requirements.lock)
# On so many ranks `make test` runs the tests on ranks; `make test-all` on the others.
RANKS := 3
OTHER_RANKS := 1 2 4
# The lessons whose cores `make test` runs; `make test-all` runs all lessons whole.
CORES := 01 04 06
# So many files of tests, of slow tests and of lessons run at once: more than cores where most wait, no more where ranks crowd
# each other. JOBS=0 SLOW_JOBS=0 LESSONS=0: one by one.
JOBS := 3
SLOW_JOBS := 3
LESSONS := 2
BESIDE := --dist loadfile --no-loadscope-reorder --durations=15
RANK_TESTS := tests/ranks packages/torch_mpi4py/tests/ranks
UNIT_TESTS := tests packages $(RANK_TESTS:%=--ignore=%)
# Ranks need no other plugins of pytest, and each would import them for seconds.
ALONE := PYTEST_DISABLE_PLUGIN_AUTOLOAD=1
ON_RANKS = $(BIN)/python -m mpi_classroom.launch $$n -m pytest -p pytest_timeout -q
# Beside others a test can miss its deadline because the processors are taken. So up to ten that failed have a second
# try, one by one; of a lesson, the whole notebook; on ranks, the suite. Both tries are printed.
PYTEST := $(BIN)/python -m pytest
AGAIN := $(PYTEST) --last-failed --last-failed-no-failures=none --maxfail=1
FAILED := .pytest_cache/v/cache/lastfailed
few_failed = test -f $(FAILED) && test $$(wc -l < $(FAILED)) -le 12 && echo 'A second try, one by one:'
lessons_failed = test -f $(FAILED) && echo 'A second try, one by one:'
FAILED_LESSONS = $$(sed -n 's|^ *"\(notebooks/[^:"]*\).*|\1|p' $(FAILED) | sort -u)

.DEFAULT_GOAL := help
.PHONY: help setup course lab test test-all test-release mutations check format notebooks bench site slides pictures clean lock licences audit schemas moved newest image

help:
	@echo 'make course      set up, run the core of every lesson on a 4-rank MPI cluster, write build/'
	@echo 'make lab         set up, open JupyterLab on my_course/, your own copy of the lessons'
	@echo 'make test        set up, run the tests: 8 to 16 minutes on 2 cores'
	@echo 'make test-all    run all that make test leaves out, but for the next: 30 minutes more'
	@echo 'make test-release  run what takes hours, before a release'
	@echo 'make mutations   break the library in known places: do the quick tests notice? 3 minutes'
	@echo 'make check       format, lint, types, layers, notebook drift, unused names: seconds'
	@echo 'make notebooks   build the lessons from course/lessons (one: make notebooks LESSON=02)'
	@echo 'make bench       run the benchmarks into benchmarks/results'
	@echo 'make site        make the website in build/site/html, from the committed notebooks'
	@echo 'make slides      make the slides of all lessons in build/slides (one: make slides LESSON=02)'
	@echo 'make pictures    make the pictures in docs/images again, with a Chromium: look at them'
	@echo 'make clean       stop clusters that were left behind, remove build/'
	@echo 'make lock        rewrite the two lists of pins after a change of a pyproject.toml (newest of all: UPGRADE=1)'
	@echo 'make licences    rewrite docs/maintainers/licences.md from requirements.lock'
	@echo 'make audit       ask whether a pinned version has a known vulnerability'
	@echo 'make schemas     compare workflows, compose.yaml and CITATION.cff with their schemas'
	@echo 'make image       build the container image and check it'
	@echo 'make moved       say which private names of other libraries have moved'
	@echo 'make newest      install the newest of everything, whatever the bounds: to see what will break'
	@echo
	@echo 'Another build of PyTorch: make setup TORCH_INDEX=https://download.pytorch.org/whl/cu130'
	@echo 'Another Python (3.11 or newer): make setup PYTHON=python3.12'

setup: $(READY)

# torch first and alone: its index serves the CPU build, and nothing else is looked up there. setuptools before the
# rest: a few packages have no wheel, and are built with what has been checked, without asking for anything else.
$(READY): $(LOCK) pyproject.toml course/pyproject.toml packages/mpi_classroom/pyproject.toml packages/torch_mpi4py/pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo 'This course needs Python 3.11 or newer; $(PYTHON) is older. Try: make setup PYTHON=python3.12'; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || \
	  { rm -rf .venv; echo 'Python cannot make a virtual environment. On Debian or Ubuntu: sudo apt install python3-venv. Without that right: a folder or a USB stick, docs/doors.md'; exit 1; }
	@echo 'Installing PyTorch (about 200 MB). If $(TORCH_INDEX) does not answer, the build that pip finds elsewhere is used.'
	$(PIP) --no-deps --retries 1 --timeout 20 --extra-index-url $(TORCH_INDEX) $(TORCH)
	@echo 'Installing everything else (about 200 MB): each file must have a digest that is in $(LOCK).'
	@sed -n '/^setuptools==/,/[^\]$$/p' $(LOCK) > $(VENV)/first.txt
	$(LOCKED) --no-deps --require-hashes --requirement $(VENV)/first.txt
	$(LOCKED) --no-deps --no-build-isolation --require-hashes --requirement $(LOCK)
	@# A build of PyTorch for an accelerator needs more packages, and names their versions; the CPU's needs none.
	$(PIP) --quiet $(TORCH)
	$(PIP) --no-deps --no-build-isolation \
	  --editable packages/torch_mpi4py --editable packages/mpi_classroom --editable . --editable course
	@# Of transformers' hundreds of models we import few, of tests none: what is left out is compiled when it is imported.
	@$(BIN)/python -c 'import compileall, re, sysconfig; compileall.compile_dir(sysconfig.get_path("purelib"), quiet=2, workers=0, rx=re.compile("/(tests?|testing|models)/"))' || true
	@# mpiexec and torchrun, as one types them, for one machine: without warnings, as root, on more ranks than cores.
	$(BIN)/python -m mpi_classroom.commands
	@touch $(READY)

course: setup
	$(BIN)/course run

lab: setup
	$(BIN)/course lab

test: setup
	@rm -f $(FAILED)
	$(PYTEST) -n $(JOBS) $(BESIDE) $(UNIT_TESTS) || { $(few_failed) && $(AGAIN) $(UNIT_TESTS); }
	@set -e; for n in $(RANKS); do echo "tests/ranks, $$n at once"; \
	  $(ALONE) $(ON_RANKS) $(RANK_TESTS) || $(ALONE) $(ON_RANKS) $(RANK_TESTS); done
	@rm -f $(FAILED)
	$(PYTEST) -n $(LESSONS) $(BESIDE) --nbval --core $(CORES:%=notebooks/%_*.ipynb) || \
	  { $(lessons_failed) && $(PYTEST) --nbval --core $(FAILED_LESSONS); }

# All that `make test` left out. Lessons run whole, as on a laptop whose processor has AVX2 and nothing newer.
LAPTOP := $(BIN)/python -m tests.unit.processors AVX2 -m pytest
test-all: setup
	@rm -f $(FAILED)
	$(PYTEST) -n $(SLOW_JOBS) $(BESIDE) -m 'slow and not release' $(UNIT_TESTS) || { $(few_failed) && $(AGAIN) -m 'slow and not release' $(UNIT_TESTS); }
	@set -e; for n in $(OTHER_RANKS); do echo "tests/ranks, $$n at once"; \
	  $(ALONE) $(ON_RANKS) -m 'not release' $(RANK_TESTS) || $(ALONE) $(ON_RANKS) -m 'not release' $(RANK_TESTS); done
	@rm -f $(FAILED)
	$(LAPTOP) -n $(LESSONS) $(BESIDE) --nbval notebooks || { $(lessons_failed) && $(LAPTOP) --nbval $(FAILED_LESSONS); }

# Hours, beside nothing else.
test-release: setup
	RANDOM_KILLS=50 $(PYTEST) -m release $(UNIT_TESTS)
	@n=2; $(ALONE) $(ON_RANKS) -m release $(RANK_TESTS)
	CHECKPOINT_KILLS=200 $(PYTEST) -m slow tests/unit/parallel/test_checkpoint_killed.py
	$(BIN)/python -m mpi_classroom.launch 3 packages/torch_mpi4py/tests/ranks/test_differential.py --seconds 3600

mutations: setup
	$(BIN)/python -m tests.mutations

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m course.tools.lint
	$(BIN)/python -m course.tools.unused

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

notebooks: setup
	$(BIN)/python -m course.tools.build $(LESSON)

bench: setup
	@set -e; for file in benchmarks/[a-z]*.py; do name=$$(basename $$file .py); \
	  case $$name in harness|synthetic_ranks|gpu|gpu_parts|recorded|planner_published|summaries_smollm2) continue;; esac; echo "== $$name"; \
	  $(BIN)/python -m benchmarks.$$name --json benchmarks/results/$$name.json; done
	$(BIN)/python -m benchmarks.recorded

# Sphinx has an environment of its own, so that what learners install stays small. Building asks no network.
SITE := build/tools/site
$(SITE)/.ready: requirements-site.lock
	$(PYTHON) -m venv $(SITE)
	$(SITE)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes --requirement $<
	@touch $@

site: setup $(SITE)/.ready
	$(BIN)/python -m course.tools.site build/site/source
	rm -rf build/site/html
	$(SITE)/bin/sphinx-build -W --keep-going -q -j auto -d build/site/doctrees build/site/source build/site/html
	@echo 'Open build/site/html/index.html'

# One deck per lesson (one: make slides LESSON=02). reveal.js comes with a package of the site's environment.
slides: setup $(SITE)/.ready
	$(BIN)/python -m course.tools.slides --reveal $(SITE)/lib/python3*/site-packages/sphinx_revealjs/_static/revealjs $(LESSON)
	@echo 'Open build/slides/00_start_here.html; press S for the notes of the speaker'

pictures: setup
	$(BIN)/python -m tests.browser.pictures

clean:
	@test ! -x $(BIN)/course || $(BIN)/course clean
	rm -rf build

# Tools that only maintainers use, each in an environment of its own.
build/tools/%/bin/python:
	$(PYTHON) -m venv build/tools/$*
	$@ -m pip install --quiet --disable-pip-version-check $*

UPGRADE ?=
UV := build/tools/uv==0.13.9/bin
AUDIT := build/tools/pip-audit==2.10.1/bin
lock: setup $(UV)/python
	$(BIN)/python -m course.tools.pins --uv $(UV)/uv $(UPGRADE:%=--upgrade)

licences: setup
	$(BIN)/python -m course.tools.licences

audit: $(AUDIT)/python
	@sed -n 's/^\(# \)\{0,1\}\([a-z0-9][a-z0-9.-]*==[^ ]*\).*/\2/p' $(LOCK) > build/pins.txt
	$(AUDIT)/pip-audit --disable-pip --no-deps --requirement build/pins.txt

# With the schemas that the tool brings: nothing is downloaded but the tool.
SCHEMAS := build/tools/check-jsonschema==0.39.0/bin
schemas: $(SCHEMAS)/python
	$(SCHEMAS)/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(SCHEMAS)/check-jsonschema --builtin-schema vendor.compose-spec compose.yaml
	$(SCHEMAS)/check-jsonschema --builtin-schema vendor.citation-file-format CITATION.cff

moved: setup
	$(BIN)/python -m course.tools.moved

# With Docker; how without: tests/image/build_and_check.sh.
image:
	tests/image/build_and_check.sh

# Whatever the bounds say: what will the next versions break? Not for an environment that you work with.
newest: setup
	$(PIP) --no-deps --upgrade --retries 1 --timeout 20 --extra-index-url $(TORCH_INDEX) torch
	$(PIP) --upgrade --upgrade-strategy eager $$($(BIN)/python -m course.tools.pins --names)
