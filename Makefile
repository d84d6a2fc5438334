# Each verb creates the virtual environment that it needs below .env/ and reuses it until
# pyproject.toml or the constraints change. You need only Python 3.10+ and make.

PYTHON ?= python3
FUZZ_SECONDS ?= 300
TEST_PROCESSES ?= 2
GO ?= go
NPM ?= npm
CARGO ?= cargo
# The rust-version of ports/rust/Cargo.toml.
RUST_OLDEST := 1.89
CMAKE ?= cmake
# A second server that speaks S3, for tests/stores.
VERSITYGW := github.com/versity/versitygw/cmd/versitygw@v1.8.0
# Azure's emulator of its store.
AZURITE := azurite@3.35.0
STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2
# Not empty: a language whose tools are missing is an error, and not only left out.
ALL_LANGUAGES ?=

# The tests start hundreds of processes, which would compile the library again and again.
unexport PYTHONDONTWRITEBYTECODE

# Nobody debugs what is built here or builds it again after a small change, and both cost time and memory.
export CARGO_INCREMENTAL := 0
export CARGO_PROFILE_DEV_DEBUG := 0
# Compiling zstd takes half as long as compiling the Rust library, and each toolchain would do it again.
ifneq ($(shell pkg-config --exists libzstd 2>/dev/null && echo found),)
export ZSTD_SYS_USE_PKG_CONFIG := 1
endif

ENV := .env
# From the index that pip uses: uv does not read pip's settings.
UV := UV_DEFAULT_INDEX="$${UV_DEFAULT_INDEX:-$${PIP_INDEX_URL:-$$($(ENV)/uv/bin/python -m pip config get global.index-url 2> /dev/null)}}" \
	$(ENV)/uv/bin/uv --quiet --no-python-downloads
INPUTS := pyproject.toml constraints.txt
# Variables, because a comma would end an argument of `call`.
DEMO_EXTRAS := gym,hdf5,plot
TEST_EXTRAS := dev,convert,converters,notebook,rerun
RAY_EXTRAS := ray,remote

.DEFAULT_GOAL := help
.PHONY: help environments demo conformance ports always test test-ports $(foreach language,go typescript rust c,test-$(language) test-all-$(language)) test-quick test-stores test-convert test-viewer test-viewer-units test-notebook viewer test-bridges test-ray test-pythons test-slow test-oldest test-wheel test-fuzz test-differential test-all test-all-languages lint lint-types lint-files vectors docs bench bench-ports fuzz fuzz-files clean

help:
	@echo "make demo      install into its own environment and show everything at work (about a minute)"
	@echo "make test      lint without types, and all tests that need only light packages (a few minutes)"
	@echo "make test-all  the rest: types, exhaustive tests, oldest dependencies, wheel, bounded fuzzing"
	@echo "make test-bridges  torch, Grain and JAX, Hugging Face, TensorDict, MDS: in an environment that has them"
	@echo "make test-ray      jobs and datasets on a Ray cluster of two nodes, in an environment that has it"
	@echo "make test-convert  converters, with files that the libraries of other formats wrote"
	@echo "make test-pythons  the core tests on every other Python that this machine has or can get"
	@echo "make test-viewer   the tests of the viewer, in Chromium where it is installed"
	@echo "make test-ports    the tests of the Go, TypeScript, Rust and C libraries, where their tools are installed"
	@echo "make conformance   asks the conformance program of every language about every vector; writes spec/CONFORMANCE.md"
	@echo "make lint      ruff, mypy, codespell, and the generated files"
	@echo "make test-notebook   the viewer in JupyterLab, in Chromium where it is installed"
	@echo "make viewer    rebuild the page of the viewer"
	@echo "make vectors   regenerate spec/vectors"
	@echo "make docs      regenerate the generated parts of README and docs"
	@echo "make bench     compare with peers; BENCH='--write' records benchmarks/RESULTS.md"
	@echo "make bench-ports   the same for the other languages; writes benchmarks/RESULTS_PORTS.md"
	@echo "make fuzz      coverage-guided and differential fuzzing, FUZZ_SECONDS=$(FUZZ_SECONDS) each"
	@echo "make clean     remove environments and caches"

# Installs into all environments: several packages at a time, as links to one copy of each.
$(ENV)/uv/.ready:
	@rm -rf $(@D)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "Python 3.10 or newer is needed: make PYTHON=python3.x")'
	@$(PYTHON) -m venv $(@D) || { rm -rf $(@D); echo "$(PYTHON) cannot make virtual environments: install its venv module (Debian: python3-venv)"; exit 1; }
	@$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --no-input -c constraints.txt uv
	@touch $@

# $(1): folder, $(2): what to install. Always into an empty folder, so that no leftover package hides a mistake.
# Modules are compiled when they are first imported, which most never are.
define make_environment
	@echo "installing into $(1) …"
	@rm -rf $(1)
	@$(UV) venv --python $(ENV)/uv/bin/python $(1)
	@$(UV) pip install --python $(1) $(2)
	@touch $@
endef

# $(1): folder. Without its dependencies: it declares an older NumPy and the clients of four clouds.
define add_streaming
	@$(UV) pip install --python $(1) --no-deps -c constraints.txt mosaicml-streaming || { rm $@; exit 1; }
endef

# $(1): folder. Without its dependencies: it declares an older torch. torchvision is the newest with the VideoReader that
# LeRobot uses, torchcodec the newest that loads without CUDA. torchcodec looks for FFmpeg where programs find libraries,
# and gets the one that PyAV brings.
define add_lerobot
	@$(UV) pip install --python $(1) --no-deps lerobot==0.4.4 torchvision==0.25.0 torchcodec==0.13.0 || { rm $@; exit 1; }
	@mkdir $(1)/ffmpeg
	@for file in $(abspath $(1))/lib/python3*/site-packages/av.libs/lib[as][vw]*; do \
		name=$${file##*/} version=$${file##*.so.}; ln -s $$file $(1)/ffmpeg/$${name%%-*}.so.$${version%%.*}; done
endef

$(ENV)/demo/.ready: $(INPUTS) | $(ENV)/uv/.ready
	$(call make_environment,$(ENV)/demo,-c constraints.txt -e '.[$(DEMO_EXTRAS)]' minari)

# With pip, which builds the wheel and installs it elsewhere.
$(ENV)/test/.ready: $(INPUTS) | $(ENV)/uv/.ready
	$(call make_environment,$(ENV)/test,-c constraints.txt -e '.[$(TEST_EXTRAS)]' pip)

$(ENV)/oldest/.ready: $(INPUTS) constraints-oldest.txt | $(ENV)/uv/.ready
	$(call make_environment,$(ENV)/oldest,-c constraints-oldest.txt -e '.[dev]')

$(ENV)/bridges/.ready: $(INPUTS) | $(ENV)/uv/.ready
	$(call make_environment,$(ENV)/bridges,-c constraints.txt -e '.[bridges]')
	$(call add_streaming,$(ENV)/bridges)
	$(call add_lerobot,$(ENV)/bridges)

$(ENV)/jupyter/.ready: $(INPUTS) | $(ENV)/uv/.ready
	$(call make_environment,$(ENV)/jupyter,-c constraints.txt -e '.[notebook]' jupyterlab)

$(ENV)/ray/.ready: $(INPUTS) | $(ENV)/uv/.ready
	$(call make_environment,$(ENV)/ray,-c constraints.txt -e '.[$(RAY_EXTRAS)]' flask flask-cors 'moto[s3]' hypothesis pytest pytest-timeout)

$(ENV)/bench/.ready: $(INPUTS) | $(ENV)/uv/.ready
	$(call make_environment,$(ENV)/bench,-c constraints.txt -e '.[bench]')
	$(call add_streaming,$(ENV)/bench)
	$(call add_lerobot,$(ENV)/bench)

$(ENV)/fuzz/.ready: $(INPUTS) | $(ENV)/uv/.ready
	$(call make_environment,$(ENV)/fuzz,-c constraints.txt -e '.[fuzz]')

$(ENV)/newer-pythons/.ready: tests/packaging/newer_pythons
	@echo "installing into $(ENV)/newer-pythons …"
	@mkdir -p $(ENV)
	@tests/packaging/newer_pythons install $(ENV)/newer-pythons
	@mkdir -p $(ENV)/newer-pythons && touch $@

$(ENV)/versitygw/$(notdir $(VERSITYGW)):
	@echo "building $(VERSITYGW) …"
	@mkdir -p $(@D)
	@GOBIN=$(abspath $(@D)) $(GO) install -ldflags '-s -w' $(VERSITYGW)
	@touch $@

$(ENV)/azurite/$(AZURITE):
	@echo "installing $(AZURITE) …"
	@mkdir -p $(@D)
	@cd $(@D) && $(NPM) install --silent --no-save --no-audit --no-fund $(AZURITE)
	@touch $@

# All environments of the tests. Each takes one processor: `make -j 2 environments` creates two at a time.
environments: $(foreach name,newer-pythons bridges ray test oldest fuzz jupyter,$(ENV)/$(name)/.ready)

# $(1): what it shows, $(2): the example, $(3): its arguments. One thread for matrix products: the matrices of the
# examples are so small that threads would wait for one another.
define show
	@printf '\n######## %s: examples/%s\n' '$(1)' '$(2)'
	@OPENBLAS_NUM_THREADS=1 $(ENV)/demo/bin/python examples/$(2) $(3)
endef

demo: $(ENV)/demo/.ready
	@rm -rf demo-out
	$(call show,A container of named entries,container.py,demo-out)
	$(call show,An episode,episode.py,demo-out)
	$(call show,A recording that is killed,crash_recovery.py,demo-out)
	$(call show,A world model trained on recorded episodes,pendulum_world_model.py,demo-out/episodes)
	$(call show,A dataset of Minari,import_minari.py,demo-out)
	$(call show,Packs of samples and of these episodes,packs.py,demo-out demo-out/episodes)
	@printf '\nDone. Pictures to look at: demo-out/ep_001.png, demo-out/episodes.png\nTo see all of it in your browser: $(ENV)/demo/bin/wshard view demo-out\n'

# Files are checked while the tests run.
test: $(ENV)/test/.ready
	@$(MAKE) --no-print-directory -j 3 lint-files test-quick test-ports $(if $(filter typescript,$(LANGUAGES)),test-viewer-units)
	@echo
	@echo "Not run here: types (make lint), exhaustive damage tests (-m slow), converters, other Pythons, oldest dependencies, wheel, fuzzing. Run 'make test-all'."

# The languages whose tools are there, and those whose tools are missing.
LANGUAGES := $(if $(shell command -v $(GO)),go) $(if $(shell command -v $(NPM)),typescript) $(if $(shell command -v $(CARGO)),rust) \
	$(if $(and $(shell command -v $(CMAKE)),$(shell command -v $(CC))),c)
MISSING := $(filter-out $(LANGUAGES),go typescript rust c)

# The conformance programs.
ports: $(LANGUAGES:%=ports/%/conformance/run)
	@for language in $(MISSING); do echo "left out: $$language, whose tools are not installed"; done
	@[ -z "$(MISSING)" ] || [ -z "$(ALL_LANGUAGES)" ]

# The tools of each language know best what must be built again.
ports/go/conformance/run: always
	@cd ports/go && $(GO) build -o conformance/run ./cmd/shard-conformance

ports/typescript/conformance/run: ports/typescript/node_modules/.ready always
	@cd ports/typescript && $(NPM) run --silent build && $(NPM) run --silent conformance

ports/rust/conformance/run: always
	@cd ports/rust && $(CARGO) build --quiet --locked --workspace --all-features
	@cp ports/rust/target/debug/shard-conformance $@

ports/c/conformance/run: always
	@ports/c/build.sh release && cp ports/c/build/release/run $@

# Not `npm ci`, which refuses a lock file without the optional packages of every other platform.
ports/typescript/node_modules/.ready: ports/typescript/package-lock.json
	@cd ports/typescript && $(NPM) install --silent --no-save --no-audit --no-fund && touch node_modules/.ready

viewer/node_modules/.ready: viewer/package-lock.json
	@cd viewer && $(NPM) install --silent --no-save --no-audit --no-fund && touch node_modules/.ready

always:

test-ports: $(LANGUAGES:%=test-%)

test-go: ports
	cd ports/go && test -z "$$(gofmt -l .)" && $(GO) test -vet=all ./...

test-typescript: ports
	cd ports/typescript && $(NPM) run --silent lint && $(NPM) test --silent

test-rust: ports
	cd ports/rust && $(CARGO) fmt --all --check
	cd ports/rust && $(CARGO) test --quiet --locked --workspace --all-features

test-c: ports
	ports/c/test.sh

test-quick: $(ENV)/test/.ready ports
	$(ENV)/test/bin/python -m pytest -m "not slow" -n $(TEST_PROCESSES) --dist worksteal --ignore=tests/convert

# What needs a server that must be built or installed first; `make test` has the other tests of stores.
test-stores: $(ENV)/test/.ready $(if $(filter go,$(LANGUAGES)),$(ENV)/versitygw/$(notdir $(VERSITYGW))) \
		$(if $(filter typescript,$(LANGUAGES)),$(ENV)/azurite/$(AZURITE))
	$(ENV)/test/bin/python -m pytest tests/stores -k "versitygw or azurite"

# The page that the Python package carries, built from the sources of the viewer and of the TypeScript library. It is
# tracked, so that only those who change it need Node.
viewer: viewer/node_modules/.ready
	@cd viewer && NODE_ENV=production $(NPM) run --silent build -- --logLevel error
	@cp viewer/dist/viewer.html.gz src/wshard/viewer/viewer.html.gz

test-viewer-units: viewer/node_modules/.ready
	cd viewer && $(NPM) run --silent lint && $(NPM) test --silent

# Skipped where there is no browser, unless SHARD_REQUIRE_BROWSER is set.
test-viewer: test-viewer-units $(ENV)/test/.ready
	cd viewer && $(NPM) run --silent test:browser
	@gzip -dc src/wshard/viewer/viewer.html.gz | cmp - viewer/dist/viewer.html || { echo "the page is not that of these sources: run 'make viewer'"; exit 1; }

# In JupyterLab, with a kernel.
test-notebook: viewer/node_modules/.ready $(ENV)/jupyter/.ready
	cd viewer && SHARD_JUPYTER=$(abspath $(ENV)/jupyter/bin/jupyter) $(NPM) run --silent test:browser -- test/browser/jupyterlab.test.ts

test-convert: $(ENV)/test/.ready
	$(ENV)/test/bin/python -m pytest -n $(TEST_PROCESSES) tests/convert

# The files whole, because some train a model that all of their tests look at.
# Grain in its own process: it starts threads, and loaders that fork do not work after that.
test-bridges: $(ENV)/bridges/.ready
	$(ENV)/bridges/bin/python -m pytest -n $(TEST_PROCESSES) --dist loadfile tests/bridges --ignore=tests/bridges/test_grain.py
	$(ENV)/bridges/bin/python -m pytest tests/bridges/test_grain.py tests/architecture -k "grain or lists_its_names"

# In one process: all tests share one cluster.
test-ray: $(ENV)/ray/.ready
	$(ENV)/ray/bin/python -m pytest tests/ray

# PYTHONS='python3.10 python3.13' tests these instead of those that are found.
test-pythons: $(ENV)/test/.ready $(ENV)/newer-pythons/.ready
	$(ENV)/test/bin/python tests/packaging/check_pythons.py $(PYTHONS)
	tests/packaging/newer_pythons test $(ENV)/newer-pythons

# The longest first, so that `make -j 2 test-all` has both processors busy to the end.
test-all: test-slow test-pythons test-all-languages $(if $(filter typescript,$(LANGUAGES)),test-viewer test-notebook) test-bridges test-ray test-stores test-convert lint-types test-oldest test-differential test-fuzz test-wheel

test-slow: $(ENV)/test/.ready ports
	$(ENV)/test/bin/python -m pytest -m slow -n $(TEST_PROCESSES) --dist worksteal --ignore=tests/convert

# Of the programs, only that of Python depends on what is installed here.
test-oldest: $(ENV)/oldest/.ready ports
	$(ENV)/oldest/bin/python -m pytest -q -m "not slow" -k "python or not test_ports" -n $(TEST_PROCESSES) tests/conformance

test-wheel: $(ENV)/test/.ready
	$(ENV)/test/bin/python tests/packaging/check_wheel.py

test-fuzz: $(ENV)/fuzz/.ready
	$(MAKE) fuzz-files FUZZ_SECONDS=30

test-differential: $(ENV)/test/.ready ports
	$(ENV)/test/bin/python -m tests.conformance.differential --cases 3000

test-all-languages: $(LANGUAGES:%=test-all-%)

test-all-go: ports
	cd ports/go && $(GO) run $(STATICCHECK) ./... && $(GO) test -race ./...
	cd ports/go/benchmarks && $(GO) vet ./...

test-all-typescript: ports
	cd ports/typescript && $(NPM) run --silent check

# The oldest compiler and Miri only where they are installed or can be.
test-all-rust: ports
	cd ports/rust && $(CARGO) clippy --quiet --locked --workspace --all-targets --all-features -- -D warnings
	cd ports/rust && for features in '' zstd lz4,mmap,sign; do \
		$(CARGO) clippy --quiet --locked --no-default-features --features "$$features" -- -D warnings || exit 1; done
	cd ports/rust && RUSTDOCFLAGS='-D warnings' $(CARGO) doc --quiet --locked --no-deps --all-features
	cd ports/rust && $(CARGO) package --quiet --locked --allow-dirty --no-verify
	cd ports/rust && if rustup toolchain install --profile minimal $(RUST_OLDEST) >/dev/null 2>&1; \
		then rustup run $(RUST_OLDEST) cargo check --quiet --locked --all-features --target-dir target/oldest; \
		else echo "left out: Rust $(RUST_OLDEST), which cannot be installed here"; fi
	cd ports/rust && if rustup component add --toolchain nightly miri rust-src >/dev/null 2>&1; \
		then MIRIFLAGS=-Zmiri-disable-isolation $(CARGO) +nightly miri test --quiet --locked --no-default-features --test parsers --target-dir target/miri; \
		else echo "left out: Miri, which cannot be installed here"; fi
	ports/rust/fuzz/run.sh 5

test-all-c: ports
	ports/c/test.sh rest
	ports/c/fuzz.sh 5

# In two halves, each on one processor: checking types takes as long as everything else.
lint: $(ENV)/test/.ready
	@$(MAKE) --no-print-directory -j 2 lint-types lint-files

lint-types: $(ENV)/test/.ready
	$(ENV)/test/bin/mypy

lint-files: $(ENV)/test/.ready
	$(ENV)/test/bin/ruff check .
	$(ENV)/test/bin/ruff format --check .
	$(ENV)/test/bin/codespell
	@large=$$(git ls-files -z -- . ':!spec/vectors' | xargs -0 sh -c 'find "$$@" -maxdepth 0 -size +1000000c' _); \
		[ -z "$$large" ] || { echo "tracked files over 1 MB:" $$large; exit 1; }
	@! git grep -nE '^(<<<<<<<|>>>>>>>) ' -- . || { echo "these merges are not finished"; exit 1; }
	$(ENV)/test/bin/python spec/vectors/generate.py --check
	$(ENV)/test/bin/python docs/generate.py --check
	$(ENV)/test/bin/python ports/registry.py --check

conformance: $(ENV)/test/.ready ports
	$(ENV)/test/bin/python -m tests.conformance.ports

vectors: $(ENV)/test/.ready
	$(ENV)/test/bin/python spec/vectors/generate.py

docs: $(ENV)/test/.ready
	$(ENV)/test/bin/python docs/generate.py

bench: $(ENV)/bench/.ready
	LD_LIBRARY_PATH=$(ENV)/bench/ffmpeg $(ENV)/bench/bin/python -m benchmarks $(BENCH)

# Each language beside libraries of its own. The programs print Markdown; the file is replaced when all are done.
bench-ports: $(patsubst %,benchmarks/.%.md,$(filter-out c,$(LANGUAGES)))
	@{ printf '# Results of the other languages\n\nWritten by `make bench-ports`. Medians of interleaved rounds; files in the page cache.\n'; \
		printf '%s, %s processors. Load averages at the end:%s.\n' "$$(uname -sm)" "$$(getconf _NPROCESSORS_ONLN)" "$$(uptime | sed 's/.*://')"; cat $^; } > benchmarks/.ports.md
	@mv benchmarks/.ports.md benchmarks/RESULTS_PORTS.md && rm $^

benchmarks/.go.md: always
	@{ printf '\n## Go\n\n'; cd ports/go/benchmarks && $(GO) run .; } > $@

benchmarks/.typescript.md: ports/typescript/node_modules/.ready always
	@cd ports/typescript && $(NPM) run --silent build && cd benchmarks && $(NPM) install --silent --no-save --no-audit --no-fund
	@{ printf '\n## TypeScript\n\n'; cd ports/typescript/benchmarks && $(NPM) run --silent bench; } > $@

# The same windows with Rust and with Python, which writes the episodes. With the zstd that users of the library get.
benchmarks/.rust.md: $(ENV)/bench/.ready always
	@cd ports/rust/benchmarks && env -u ZSTD_SYS_USE_PKG_CONFIG $(CARGO) build --quiet --release --locked
	@{ printf '\n## Rust\n\n%s\n\n' "$$(rustc --version)"; ports/rust/benchmarks/target/release/shard-benchmarks; \
		$(ENV)/bench/bin/python -m benchmarks.ports_windows ports/rust/benchmarks/target/release/training; } > $@

# Each library by itself, and then the same damaged files through the programs of all languages.
fuzz: fuzz-files $(ENV)/test/.ready ports
	$(if $(filter go,$(LANGUAGES)),ports/go/fuzz.sh $$(( $(FUZZ_SECONDS) / 20 + 1 )))
	$(if $(filter rust,$(LANGUAGES)),ports/rust/fuzz/run.sh $$(( $(FUZZ_SECONDS) / 5 + 1 )))
	$(if $(filter c,$(LANGUAGES)),ports/c/fuzz.sh $$(( $(FUZZ_SECONDS) / 5 + 1 )))
	$(ENV)/test/bin/python -m tests.conformance.differential --seconds $(FUZZ_SECONDS) --seed $$$$

# atheris has wheels for CPython on Linux up to 3.13 only.
fuzz-files: $(ENV)/fuzz/.ready
	$(ENV)/fuzz/bin/python -m tests.fuzz.run --seconds $(FUZZ_SECONDS)

clean:
	rm -rf $(ENV) demo-out fuzz-work build dist ports/*/conformance/run ports/c/build .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
