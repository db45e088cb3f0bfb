# The two commands of a fresh Debian machine: make demo, make test. Each sets up what is missing first (setup/setup.sh:
# system packages, ggml + libllama, the default model); a second call is quick. Underneath is plain CMake with presets.
#
# QEVICT_SYSTEM_LLAMA=1 make ...   use an installed ggml and llama (found by CMake) in place of the pinned ones

SHELL := /bin/bash
sources = $(shell find apps include src tests benchmarks \( -name '*.cc' -o -name '*.h' -o -name '*.cpp' \) 2>/dev/null)
clang_format = $(shell command -v clang-format-14 || command -v clang-format)

.PHONY: build demo test asan tsan format check-format setup clean

build: setup  ## the program, build/qevict, and all tests
	@setup/configure.sh release
	@cmake --build build

demo: setup  ## builds the program only, and continues a text in a fifth of the cache
	@setup/configure.sh release
	@cmake --build build --target qevict_program
	build/qevict generate -f apps/qevict/demo.txt -n 120 --seed 7 --kv-budget 20%

test: build  ## all tests
	ctest --test-dir build --output-on-failure --parallel $$(nproc)

# What the sanitizers see: every room, without the program and the tests on the real model.
rooms := base codec kernels cache ranking routing diag
rooms_asan := $(rooms) model engine eval
empty :=
space := $(empty) $(empty)

asan: setup  ## all rooms under the address and undefined-behaviour sanitizers
	@setup/configure.sh asan
	@cmake --build build-asan --target $(addsuffix _test,$(rooms_asan))
	ctest --test-dir build-asan --output-on-failure --parallel $$(nproc) -R '^($(subst $(space),|,$(rooms_asan)))_test$$'

tsan: setup  ## the rooms without ggml under the thread sanitizer
	@setup/configure.sh tsan
	@cmake --build build-tsan --target $(addsuffix _test,$(rooms))
	ctest --test-dir build-tsan --output-on-failure --parallel $$(nproc) -R '^($(subst $(space),|,$(rooms)))_test$$'

format:
	@$(clang_format) -i $(sources)

check-format:
	@$(clang_format) --dry-run -Werror $(sources)

setup:
	@setup/setup.sh

clean:
	rm -rf build build-dev build-asan build-tsan
