# glint from a clone to a running program. `make help` lists what there is to ask for.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.PHONY: help chat build test fuzz bench format clean rust packages test-packages fuzz-packages crates
.NOTPARALLEL:

# A rustup installation counts even in a shell that was opened before it.
export PATH := $(if $(wildcard $(HOME)/.cargo/bin/cargo),$(HOME)/.cargo/bin:)$(PATH)
JOBS ?= $(shell nproc)
RUST_NEEDED := 1.87

BUILD_PACKAGES := cmake ninja-build pkg-config libboost-dev nlohmann-json3-dev libcli11-dev libspdlog-dev libfmt-dev libedit-dev prometheus-cpp-dev libxxhash-dev
TEST_PACKAGES := libgtest-dev libgmock-dev python3 python3-venv chromium $(if $(shell command -v node),,nodejs) $(if $(shell command -v npm),,npm)
FUZZ_PACKAGES := libgtest-dev libgmock-dev python3 clang-19 libclang-rt-19-dev

# Installs those of the Debian packages $(1) that are absent, and says so; does nothing, silently, when all are there.
define install
	@missing=""; \
	for package in $(1); do \
	  dpkg-query -W -f='$${Status}\n' $$package 2>/dev/null | grep -q '^install ok installed' || missing="$$missing $$package"; \
	done; \
	command -v c++ >/dev/null || missing="$$missing g++"; \
	if [ -n "$$missing" ]; then \
	  command -v apt-get >/dev/null || { echo "glint needs these packages, under Debian's names:$$missing"; \
	    echo "This is no Debian, so please install them by hand and run make again."; exit 1; }; \
	  sudo=""; \
	  if [ "$$(id -u)" != 0 ]; then \
	    command -v sudo >/dev/null || { echo "Missing Debian packages. Please run as root: apt-get install -y$$missing"; exit 1; }; \
	    sudo=sudo; \
	  fi; \
	  echo "==> Installing Debian packages:$$missing"; \
	  $$sudo apt-get -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3 -qq update || echo "==> apt-get update failed; trying with the lists at hand"; \
	  $$sudo env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3 \
	    -o Dpkg::Use-Pty=0 -qq -y --no-install-recommends install $$missing >/dev/null; \
	fi
endef

help:
	@echo "make chat    install what is missing, build a release, chat with the demo model"
	@echo "make build   install what is missing, build a release: the program is build/glint"
	@echo "make test    install what is missing, build and run every test; ends in 'N passed, N failed'"
	@echo "make bench   build a release and measure it on the demo model"
	@echo "make fuzz    build the fuzz targets with clang and run each for FUZZ_SECONDS (default 60)"
	@echo "make format  rewrite the C++ sources with clang-format-19"
	@echo "make clean   remove build/, everything that the others made in this folder"

chat: build
	@echo "==> Starting: build/glint chat"
	@exec build/glint chat

build: rust packages crates
	@echo "==> Building a release in build/ ($(JOBS) jobs)"
	@cmake --preset release -DGLINT_TESTS=OFF --log-level=WARNING >/dev/null
	@cmake --build build -j $(JOBS)
	@echo "==> Built build/glint"

test: rust packages test-packages crates
	@python3 tests/run_all.py --jobs $(JOBS)

bench: build
	build/glint bench $(MODEL)

FUZZ_SECONDS ?= 60
fuzz: rust packages fuzz-packages crates
	@cmake --preset fuzz --log-level=WARNING >/dev/null
	@cmake --build build/fuzz -j $(JOBS) --target fuzzers
	@python3 tests/run_fuzzers.py --seconds $(FUZZ_SECONDS)

format:
	@git ls-files --cached --others --exclude-standard -- 'src/*.h' 'src/*.cc' 'tests/*.h' 'tests/*.cc' 'bench/*.cc' | xargs clang-format-19 -i

clean:
	rm -rf build

rust:
	@found=$$(cargo --version 2>/dev/null | cut -d ' ' -f 2 || true); \
	if [ "$$(printf '%s\n' $(RUST_NEEDED) "$${found:-0}" | sort -V | head -n 1)" != $(RUST_NEEDED) ]; then \
	  echo "glint needs Rust $(RUST_NEEDED) or newer; found: $${found:-none}."; \
	  echo "Get it with rustup (https://rustup.rs), as the user who runs make:"; \
	  echo "  curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh -s -- -y --profile minimal"; \
	  exit 1; \
	fi

packages:
	$(call install,$(BUILD_PACKAGES))

test-packages:
	$(call install,$(TEST_PACKAGES))

fuzz-packages:
	$(call install,$(FUZZ_PACKAGES))

crates:
	@cargo fetch --locked --quiet --manifest-path rust/Cargo.toml || { \
	  echo "The crates of rust/Cargo.lock could not be fetched: is crates.io reachable?"; exit 1; }
