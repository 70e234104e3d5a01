# Each target first makes the environment, or finds it up to date at once. PYTHON=... chooses the interpreter.
VENV ?= .venv
BIN = $(VENV)/bin
export VENV

TESTS = not slow and not gpu and not soak
SOAK_SECONDS ?= 180
AT_ONCE ?= 3

.PHONY: train test bench audit soak tsan parallel lint env

train: env
	$(BIN)/freecfr train configs/leduc.toml

test: env audit
	$(BIN)/python -m pytest -m "$(TESTS)" --benchmark-disable

# The figures of docs/performance.md, and one benchmark per kernel
bench: env
	$(BIN)/freecfr bench traversal
	$(BIN)/freecfr bench forward
	$(BIN)/freecfr bench end-to-end
	$(BIN)/freecfr bench baseline
	$(BIN)/freecfr bench schedulers
	$(BIN)/freecfr bench overlap
	$(BIN)/freecfr bench checkpoints
	$(BIN)/freecfr bench matches
	$(BIN)/freecfr bench memory
	$(BIN)/freecfr bench learning
	$(BIN)/python -m pytest tests/benchmarks --benchmark-only

# What keeps pyx/ from running on many threads: nothing, or it fails
audit: env
	$(BIN)/nogil-audit pyx

# Each for SOAK_SECONDS: mutated sources through the checker, mutated files through the readers, runs that are killed
soak: env
	SOAK_SECONDS=$(SOAK_SECONDS) $(BIN)/python -m pytest -m soak tests

# Blocks, pool and matches under ThreadSanitizer; the first time builds a CPython for it
tsan: env
	PYTHON=$(BIN)/python scripts/tsan

# Each unit test on AT_ONCE threads at the same time; at the end, those that are not and why
parallel: env
	PYTEST_RUN_PARALLEL_VERBOSE=1 $(BIN)/python -m pytest -m "$(TESTS)" --benchmark-disable --parallel-threads=$(AT_ONCE) \
		tests/pyx tests/threading_runtime tests/audit

lint: env
	$(BIN)/ruff check
	$(BIN)/mypy

env:
	@scripts/bootstrap
