# make serve   set up, fetch the model, serve it on port 8000 (ORCA_PORT)
# make test    set up, lint, types, import contracts, all tests
# make chaos   the tests of faults that take long to get over, then random faults under load for five minutes
# make fuzz    random requests, bodies, streams and pool calls, fifty times as many as in make test
# make verify  the paper trace over HTTP, each output against generate() alone
# make clients each client that people use, in an environment of its own, against a real server; CLIENTS="NAME ..." for some
# make simulate  the real scheduler on virtual time: the paper's evaluation, chunked prefill, pools and their engines
PYTHON ?= python3
# where pip finds torch; empty: its usual index. See "CPU or CUDA" in the README
TORCH_INDEX ?=

BIN := .venv/bin
PIP := $(BIN)/pip --disable-pip-version-check install --no-compile --constraint constraints.txt

# what a process compiled, the next one need not; images of containers often ask for the opposite
unexport PYTHONDONTWRITEBYTECODE

.PHONY: serve test chaos fuzz lint verify bench clients simulate clean

serve: .venv/serve
	@exec $(BIN)/orca serve

test: .venv/test lint
	$(BIN)/python -m pytest -m 'not chaos' --numprocesses 3 --no-loadscope-reorder

chaos: .venv/test
	$(BIN)/python -m pytest -m chaos
	$(BIN)/python -m load.chaos

fuzz: .venv/test
	$(BIN)/python -m pytest tests/fuzz --hypothesis-profile=fuzz --timeout 3600

lint: .venv/test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

verify: .venv/serve
	$(BIN)/python -m load.bench.verify

bench: .venv/serve
	$(BIN)/python -m load.bench

clients: .venv/serve
	$(if $(TORCH_INDEX),UV_INDEX=$(TORCH_INDEX) UV_INDEX_STRATEGY=unsafe-best-match) \
		$(BIN)/python -m tests.clients --markdown docs/clients.md $(CLIENTS)

simulate: .venv/serve
	$(BIN)/python -m load.simulation

.venv/python:
	$(PYTHON) -m venv .venv
	@touch $@

# torch first and alone: another package asking for it would take the registry's newest build
.venv/torch: .venv/python constraints.txt
	@echo "installing torch (about 200 MB for the CPU build)"
	$(PIP) $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) torch
	@touch $@

.venv/serve: .venv/torch pyproject.toml constraints.txt
	@echo "installing Ray, transformers and the rest"
	$(PIP) --editable .
	@touch $@

.venv/test: .venv/serve
	@echo "installing what the tests need"
	$(PIP) --editable '.[dev]'
	@touch $@

clean:
	rm -rf .venv .clients .mypy_cache .pytest_cache .ruff_cache .hypothesis *.egg-info
