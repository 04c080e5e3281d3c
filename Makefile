# Every command of the project. A fresh clone needs make, python3 (3.11 or newer, 64-bit) and its venv module, nothing else.

PYTHON ?= python3
ARGS ?=
KEEP ?=
DATA ?=
RESULTS ?= out/results
SEEDS ?= 0..10000
JOBS ?= 2

# The products here are many and small: threads of BLAS would mostly wait for one another.
export OMP_NUM_THREADS ?= 1

# A process that keeps no compiled modules compiles them at every start, and the tests start hundreds.
unexport PYTHONDONTWRITEBYTECODE

# Tests wait for brokers and processes, so one more than there are cores keeps them busy, those of soak twice as many.
# Not more, since each of these processes imports every test before it runs one: a quarter of a minute of a core.
TESTERS ?= $(shell expr `nproc` + 1)
WAITERS ?= $(shell expr `nproc` '*' 2)

VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
FOR_DEMO := $(VENV)/.installed-for-demo
PLAN := $(VENV)/.torch-plan.json
# -qq keeps errors and drops the rest: sixty packages are sixty lines that nobody reads.
PIP := $(BIN)/python -m pip --disable-pip-version-check -qq --no-input
# Of all that comes a tenth is ever imported, and Python compiles that when it is.
FETCH := $(PIP) install --no-compile -c constraints.txt
TORCH := $(shell sed -n 's/^\(torch==[0-9.]*\).*/\1/p' constraints.txt)
# What others make is measured in an environment of its own, so that nothing of it gets into ours.
PEERS := .venv-peers
FLOWER := 1.42.0
WITH_FLOWER := $(PEERS)/.flower-$(FLOWER)
TO_CLEAN := $(VENV) $(PEERS) build dist out .pytest_cache .mypy_cache .ruff_cache .hypothesis .benchmarks

.DEFAULT_GOAL := help
.PHONY: help install install-lstm demo demo-building test numerical check style bench bench-peers pictures fuzz soak soak-tests reproduce named clean

help: ## Say what each command does.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-13s %s\n", $$1, $$2 }' Makefile

install: $(INSTALLED) ## Make .venv with everything but torch; does nothing when it is up to date.

install-lstm: install ## Add torch for the LSTM detector: the CPU build where the index offers one.
	@echo "install-lstm: asking the package index for a CPU build of $(TORCH)"
	@$(PIP) install 'pip>=25.3'  # the first that plans an installation without downloading it
	@requirement='$(TORCH)+cpu'; \
	$(PIP) install --dry-run --report $(PLAN) -c constraints.txt "$$requirement" 2>/dev/null || { \
		echo "install-lstm: no CPU build for this machine there, taking the plain one"; requirement='$(TORCH)'; \
		$(PIP) install --dry-run --report $(PLAN) -c constraints.txt "$$requirement"; } && \
	$(BIN)/python -c "$$TELL_PLAN" $(PLAN) && \
	$(PIP) install -c constraints.txt "$$requirement"
	@rm -f $(PLAN)
	@echo "install-lstm: done"

demo: $(FOR_DEMO) ## Run the whole loop on a real bridge recording, with its page; KEEP=1 lets it run on, ARGS="--scenario footbridge".
	@$(BIN)/firmware-sim demo $(if $(KEEP),--keep) $(ARGS)

demo-building: $(FOR_DEMO) ## Run it on five rooms with a fault in each; rooms of your own: ARGS="--data FOLDER".
	@$(BIN)/firmware-sim demo-building $(if $(KEEP),--keep) $(ARGS)

# The rules of the house are among the tests, and mypy takes a core that would wait if it came first.
test: style ## Run the checks and all tests but those of soak: six minutes on two cores.
	@echo "test: mypy, pytest"
	@$(BIN)/mypy & types=$$!; $(BIN)/pytest --benchmark-disable --numprocesses $(TESTERS) --dist worksteal; \
	tests=$$?; wait $$types && exit $$tests

# What tests the mathematics: it imports the models, and runs no service, no world and no study.
numerical: install ## Run the tests of the models alone, such as under settings that make another processor of this one.
	@$(BIN)/pytest --benchmark-disable --numprocesses $(JOBS) --dist worksteal -m "not slow" $$( \
		grep -rlE '^from fedgate.models' tests/models tests/laws --include 'test_*.py' | \
		xargs grep -LE '^from (fedgate\.(cloud_aggregator|firmware_sim|gateway_agent\.(events|state))|tests\.support\.sites)')

check: style ## Check style, types and the rules of the house, in about a minute; no test of behaviour.
	@echo "check: mypy, tidy"
	@$(BIN)/mypy & types=$$!; $(BIN)/pytest tests/project/test_tidy*; rules=$$?; wait $$types && exit $$rules

style: install
	@echo "style: ruff"
	@$(BIN)/ruff check --quiet
	@$(BIN)/ruff format --check --quiet

bench: install ## Measure speed, memory and size beside their targets, in minutes; never fails on a figure.
	@$(BIN)/pytest tests/benchmarks -s $(ARGS)

bench-peers: install $(WITH_FLOWER) ## Measure our exchange and simulation beside Flower's, in the same run: minutes.
	@$(BIN)/python -m tests.benchmarks.peers.compare $(PEERS)/bin/python

pictures: install ## Draw the page anew for the documents, of a demo that it runs: two minutes, with Chromium.
	@$(BIN)/python -m tests.browser.draw_pages docs/images

fuzz: install ## Fuzz every reader with atheris, a minute each, where it installs; ARGS="--minutes 5 wire topics".
	@$(PIP) install atheris 2>/dev/null || true
	@$(BIN)/python -m tests.fuzz.campaign $(ARGS)

soak: soak-tests ## Run the long tests, minutes, then 10,000 seeded worlds, hours. Others: SEEDS=0..500.
	@echo "soak: worlds $(SEEDS)"
	@$(BIN)/firmware-sim world --seeds "$(SEEDS)" --jobs "$(JOBS)"

soak-tests: install ## Run the tests that `make test` leaves out, and properties with more examples: half an hour.
	@echo "soak: pytest"
	@$(BIN)/pytest -m 'soak or hypothesis' --hypothesis-profile long --benchmark-disable --numprocesses $(WAITERS) --dist worksteal

reproduce: named install ## Measure every table of the papers; DATA=folder with tabular/ and streams/. Goes on where it was stopped.
	@for table in firmware_sim/studies/tables/*.toml; do \
		$(BIN)/python -m fedgate.firmware_sim.studies measure $$table --data "$(DATA)" --results "$(RESULTS)" $(ARGS) || exit; done

named:
	@test -n "$(DATA)" || { echo "reproduce: name the folder that holds the data: make reproduce DATA=..." >&2; exit 2; }

clean: ## Remove everything these commands made: .venv, caches and the demo's results in out.
	@rm -rf $(TO_CLEAN) .src/*.egg-info
	@find . -name __pycache__ -not -path './.git/*' -prune -exec rm -rf {} +

# pip is the last that comes into a new environment.
$(BIN)/pip:
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) was not found: sudo apt install python3 python3-venv" >&2; exit 1; }
	@$(PYTHON) -c "$$CHECK_PYTHON"
	@echo "install: making $(VENV)"
	@$(PYTHON) -m venv $(VENV)

$(FOR_DEMO): pyproject.toml constraints.txt | $(BIN)/pip
	@echo "install: fetching the demo's 57 packages into it (140 MB, 440 MB once unpacked); half a minute, more on a small machine"
	@$(FETCH) -e '.[demo]'
	@touch $@
	@echo "install: done"

$(INSTALLED): pyproject.toml constraints.txt | $(BIN)/pip
	@echo "install: fetching 102 packages into it (1 GB once unpacked); about a minute, several on a small machine"
	@$(PIP) install -c constraints.txt -e '.[dev]'
	@touch $(FOR_DEMO) $@
	@echo "install: done"

$(WITH_FLOWER): | $(BIN)/pip
	@echo "bench-peers: fetching Flower $(FLOWER) with its simulation into $(PEERS) (530 MB once unpacked)"
	@$(PYTHON) -m venv $(PEERS)
	@$(PEERS)/bin/python -m pip --disable-pip-version-check -qq --no-input install 'flwr[simulation]==$(FLOWER)'
	@touch $@

# Parsed by any Python since 2.7, so that an old one can still say what is wrong.
define CHECK_PYTHON
import struct, sys
found = sys.executable + " is Python %d.%d" % sys.version_info[:2]
if sys.version_info < (3, 11):
    sys.exit(found + ": fedgate needs 3.11 or newer; name another one with make PYTHON=python3.11")
if struct.calcsize("P") != 8:
    sys.exit(found + " for 32 bits: fedgate needs a 64-bit system, since numpy and onnxruntime have no 32-bit ARM wheels")
try:
    import ensurepip, venv
except ImportError:
    sys.exit(found + " without its venv module: sudo apt install python3-venv")
endef
export CHECK_PYTHON

# pip plans without sizes, so each file is asked for its own.
define TELL_PLAN
import json, pathlib, sys, urllib.request
def size(url):
    with urllib.request.urlopen(urllib.request.Request(url, method="HEAD")) as answer:
        return int(answer.headers["Content-Length"])
plan = json.loads(pathlib.Path(sys.argv[1]).read_text())["install"]
names = ["%s %s" % (item["metadata"]["name"], item["metadata"]["version"]) for item in plan]
cuda = [name for name in names if name.startswith(("nvidia-", "cuda-", "triton "))]
if not plan:
    print("install-lstm: nothing to fetch, it is installed")
else:
    try:
        total = "%.0f MB" % (sum(size(item["download_info"]["url"]) for item in plan) / 1e6)
    except (OSError, TypeError) as error:
        total = "of a size the index does not tell (%s)" % error
    print("install-lstm: about to fetch %d packages, %s: %s" % (len(plan), total, ", ".join(names)))
if cuda:
    print("install-lstm: %d of them are CUDA packages, which only a graphics card uses; Ctrl-C now to stop." % len(cuda))
    print("  An index with CPU builds avoids them: name it in the environment variable PIP_EXTRA_INDEX_URL and repeat.")
endef
export TELL_PLAN
