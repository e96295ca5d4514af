"""Every fenced block of README and docs runs: by itself, as lines of a file that runs, or as a command.

A block that cannot run here is named below with its reason. A line "# ..." stands for lines that are left out.
"""

import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch

import nanokv
from nanokv.check.protocol.model.mutants import MUTANTS
from nanokv.check.protocol.model.scenarios import SCENARIOS
from nanokv.device.segment.geometry import Geometry
from nanokv.tools.cli import app

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
#: files that other tests run: a block may consist of their lines
RUNS = ("examples/*.py", "tests/gpu/*.py", "nanokv/check/protocol/model/scenarios/*.py")

# why a command is not run here
GPU = "needs GPUs"
INSTALLS = "installs packages; .ci/wheel installs the wheel, tests/tools/test_packaging.py builds it"
IN_CI = "takes minutes; .ci/run runs it"
CLUSTER = "tests/cluster/test_cluster_cli.py runs it, with a folder"
LONG = "takes minutes; its parts have tests of their own"
EXAMPLE = "tests/tools/test_examples.py runs it"
COUNTED = "tests/ptx/test_budget.py calls its `main`, which takes half a minute, once for the same sources"
BY_HAND = "tests/tools/test_deployment_runs.py runs it, in a script with the lines beside it"
KUBERNETES = "needs a cluster of Kubernetes, and Docker; test_deployment_runs.py runs what the containers run"
NOT_RUN = {
    "make demo": IN_CI,
    "make demo-cluster": IN_CI,
    "make test": IN_CI,
    "make check": IN_CI,
    "make check-long": LONG,
    "make soak": LONG,
    "nanokv check --compiled": LONG,
    "make bench": LONG,
    "make bench-peers": LONG,
    "make bench-peers ARGS='--json peers.json --html peers.html'": LONG,
    "make bench-peers ARGS='--quick --sizes 1K,1M'": LONG,
    "apt-get install redis-server libibverbs1 libnuma1 libcurl4": "installs packages; each peer can be left out",
    "python examples/generate.py": EXAMPLE,
    "PYTHONPATH=OUT python your_program.py": "test_unchanged_programs_import_the_shim does the same",
    "make test-dropins": LONG,
    "make test-integrations": LONG,
    "make test-integrations MOONCAKE=FOLDER": LONG,
    "make test-gpu PYTHON=...": GPU,
    "python -m tests.gpu --only pins_hold": GPU,
    "TRITON_INTERPRET=1 python -m tests.gpu --device cpu --only pins_hold": "test_launch_machine runs it",
    "pip install .": INSTALLS,
    "pip install '.[check]'": INSTALLS,
    "pip install '.[cluster]'": INSTALLS,
    **{f"nanokv {name} etcd://127.0.0.1:2379/nanokv": CLUSTER for name in ("ls", "stats", "fsck")},
    "docker build -f examples/deploy/Dockerfile -t nanokv:0.1.0 .": KUBERNETES,
    "kubectl apply -k examples/deploy/kubernetes/base": KUBERNETES,
    "python -m nanokv.check.lab.layout up trial --nodes 3": BY_HAND,
    'export OPTIONS="--ports 40000-44999 --heap 64Mi --status 8790"': BY_HAND,
    "for i in 1 2 3; do ip netns exec trial.node$i python -m examples.deploy.node etcd://10.77.0.1:2379/trial "
    "--node node$i --world trial$i --bind 10.77.0.1$i $OPTIONS & done": BY_HAND,
    "for i in 1 2 3; do until ip netns exec trial.node$i curl -sf http://10.77.0.1$i:8790/ready; "
    "do sleep 1; done; done": BY_HAND,
    **{f"ip netns exec trial.node1 nanokv {x} etcd://10.77.0.1:2379/trial": BY_HAND for x in ("ls", "stats", "fsck")},
    "kill $(jobs -p); wait": BY_HAND,
    "python -m nanokv.check.lab.layout down trial": BY_HAND,
    "pip install '.[transformers]'": INSTALLS,
    "nanokv check --device cuda": GPU,
    "python -m bench.gpu.plan --out build/gpu --commit HASH": GPU,
    "python -m bench.gpu.plan --out build/gpu --only many sweep": GPU,
    "python -m bench.gpu.report build/gpu": f"{GPU}: tests/tools/test_gpu_plan.py writes it into a copy",
    "python -m bench compare before.json after.json": "test_bench_compare runs it",
    **{f"python -m bench.gpu.{name}": COUNTED for name in ("budget", "model", "engine_write")},
    "CUDA_VISIBLE_DEVICES=0 torchrun --standalone --nproc-per-node 4 examples/serve.py": GPU,
}
#: the same with less to do
SMALLER = {
    "nanokv check": "nanokv check litmus --seconds 0.1",
    "python -m bench --quick": "python -m bench announce pieces --quick --rounds 3 --heap local --alloc device",
    "python -m bench latency --sizes 1K,8M --heap shm --alloc device --rounds 5000": (
        "python -m bench latency --sizes 1K,8M --heap shm --alloc device --rounds 3 --repeats 1 --ring 32M"
    ),
    "python -m bench latency --heap shm --alloc device --sizes 32K,64K,256K,1M,8M": (
        "python -m bench latency --heap shm --alloc device --sizes 32K,8M --rounds 3 --repeats 1 --ring 32M"
    ),
    "python -m bench latency --heap shm --alloc device --sizes 1K": (
        "python -m bench latency --heap shm --alloc device --sizes 1K --rounds 3 --repeats 1"
    ),
    "python -m bench latency --heap shm --alloc device --sizes 1K --repeats 3": (
        "python -m bench latency --heap shm --alloc device --sizes 1K --rounds 3 --repeats 1"
    ),
    "python -m bench peers --sizes 1K --repeats 2": (
        "python -m bench peers --sizes 1K --quick --rounds 10 --repeats 1 --ring 1M"
    ),
    "python -m bench.gpu.plan --out build/toy --toy": (
        "python -m bench.gpu.plan --out OUT --toy --only pins_hold symmetric"
    ),
    "python -m bench wait announce burst": "python -m bench wait announce burst --quick",
    "python -m bench load full --json out.json --html out.html": (
        "python -m bench load full --quick --rounds 4 --pages 64 --json OUT/out.json --html OUT/out.html"
    ),
    "python -m bench steps": "python -m bench steps --quick",
    "python -m bench steps --heap shm": "python -m bench steps --heap shm --quick",
    "python -m bench burst": "python -m bench burst --quick",
    **{f"python -m bench {name}": f"python -m bench {name} --quick" for name in ("plan", "imports", "memory")},
    "python -m bench plan many steps --quick": (
        "python -m bench plan many steps --quick --rounds 3 --heap local --alloc device"
    ),
    "python -m bench space": "python -m bench space --quick",
    "nanokv bench": "nanokv bench pieces --quick",
    "python -m bench.generate": "python -m bench.generate --prompt 40 --tokens 2 --rounds 1 --layers 1 --hidden 64",
    "python -m bench.simulate": "python -m bench.simulate sharding --ranks 8 --operations 100",
    "python -m bench.simulate replicas --ranks 64 --case nbytes=4096": (
        "python -m bench.simulate replicas --ranks 8 --operations 100 --case nbytes=4096"
    ),
    "python -m bench.simulate --plots docs/plots --json out.json": (
        "python -m bench.simulate sharding --ranks 8 --operations 100 --plots OUT --json OUT/out.json"
    ),
    "python -m bench.simulate hot-owner --ranks 64 --set nic_word_ns=1000": (
        "python -m bench.simulate hot-owner --ranks 8 --operations 100 --set nic_word_ns=1000"
    ),
    "python -m bench.simulate.master": "python -m bench.simulate.master --rounds 20",
    "python -m bench.simulate.cluster --json out.json": (
        "python -m bench.simulate.cluster changes bring --nodes 8 --operations 100 --json OUT/out.json"
    ),
    "python -m bench.simulate.cluster look-ups --nodes 64 --set pass_us=20": (
        "python -m bench.simulate.cluster look-ups --nodes 8 --operations 100 --set pass_us=20"
    ),
    "python -m bench.simulate.cluster.costs": "python -m bench.simulate.cluster.costs --messages 200",
}
# python blocks that no file has, by their first line
GPU_BLOCKS = {
    "from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig": (
        "needs SGLang: tests/integrations/sglang does the same"
    ),
    "import os, tempfile": "needs vLLM: tests/integrations/vllm_offload does the same",
    "from nanokv.device import Batch": f"{GPU}: a_batch_is_replayed_from_a_graph of tests/gpu does the same",
    "from nanokv.transfer.cache_writer import FilledBlock": (
        f"{GPU}: a_block_goes_over_all_layers of tests/gpu does the same"
    ),
    'cache = nanokv.NanoKVCache(64 << 30, heap="torch_symm", heap_options={"device": f"cuda:{local_rank}"})': GPU,
}
PRELUDES = {
    "import nanokv, torch": "",
    "import time": "",
    "import torch, triton, triton.language as tl": "",
    "import torch": "",
    "import nanokv": "",
    "from nanokv import Hold": """
import nanokv, torch
(cache,), kv = nanokv.local_world(1, 1 << 24), torch.ones(3)
""",
    "from nanokv.device import ptx": "",
    "from nanokv.integrations.mooncake import BufferPool, MooncakeDistributedStore, ReplicateConfig": "",
    "kv = cache.paged_kv(layers, kv_dim=1)  # one tensor per layer: "
    "[blocks, 2, tokens, heads, dim], of any strides": """
import nanokv, torch
cache, other = nanokv.local_world(2, 64 << 20)
layers, decode = [torch.randn(4, 2, 16, 2, 8) for _ in range(8)], 1
blocks, keys, keys_of_layer = [3, 1], ["a", "b"], ["c", "d"]
""",
    "source = next(row.layout for row in cache.layouts() if row.is_mine)  # what the prefill ranks have stored": """
from tests.api.test_reshard import ME, SOURCE, WHOLE, engine, model, put_all, world_of, writers
one, two, cache = world_of(*writers(SOURCE), ("", ME.with_layout(WHOLE)))
keys, (layers, _), blocks = put_all([one, two], model()), engine(WHOLE, 4), [0, 1, 2, 3]
""",
    'inputs = tokenizer(texts, return_tensors="pt", padding=True, padding_side="left")': """
import nanokv, torch
from examples.generate import load_model
from nanokv.integrations.transformers import PrefixCache
model, cache = load_model(), nanokv.local_world(1, 1 << 20)[0]
prefixes, texts = PrefixCache(model, cache), []
def tokenizer(texts, **options):
    ids = torch.randint(256, (2, 40))
    return {"input_ids": ids, "attention_mask": (torch.arange(40) >= torch.tensor([[0], [7]])).long()}
""",
}


class Block(NamedTuple):
    """One fenced block."""

    where: str
    kind: str  #: what stands behind the opening fence
    text: str

    @property
    def first_line(self) -> str:
        return self.text.split("\n", 1)[0]


def blocks() -> list[Block]:
    found = []
    for path in DOCUMENTS:
        text = path.read_text(encoding="utf-8")
        for match in re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.M | re.S):
            line = text.count("\n", 0, match.start()) + 1
            found.append(Block(f"{path.name}:{line}", match[1], match[2]))
    return found


BLOCKS = blocks()
PYTHON = [block for block in BLOCKS if block.kind == "python"]


def commands() -> list[str]:
    """Every line of every block of commands, without its comment."""
    lines = [line for block in BLOCKS if block.kind == "bash" for line in block.text.splitlines() if line]
    return list(dict.fromkeys(re.split(r"\s+# ", line)[0].strip() for line in lines))


def test_every_block_is_of_a_kind_that_is_looked_at() -> None:
    assert len(PYTHON) > 12 and len(commands()) > 20
    assert {block.kind for block in BLOCKS} == {"python", "bash", "text", "yaml", "json"}
    configurations = {block.where.split(":")[0] for block in BLOCKS if block.kind in ("yaml", "json")}
    assert configurations == {"lmcache.md"}  # tests/integrations/lmcache/test_document.py runs those
    assert all("\n" in block.text for block in BLOCKS)
    fences = sum(path.read_text(encoding="utf-8").count("```") for path in DOCUMENTS)
    assert fences == 2 * len(BLOCKS)


# --- python -----------------------------------------------------------------------------------
def shifted(lines: list[str]) -> list[str]:
    """The text without the indentation of its first line."""
    indent = len(lines[0]) - len(lines[0].lstrip())
    return [line[indent:] if line[:indent].isspace() or not indent else line for line in lines]


SOURCES = [path.read_text(encoding="utf-8").splitlines() for pattern in RUNS for path in ROOT.glob(pattern)]


def is_part_of_a_file(text: str) -> bool:
    """Whether each piece of a block consists of lines of one file of RUNS."""

    def has(piece: list[str]) -> bool:
        starts = (
            source[at : at + len(piece)]
            for source in SOURCES
            for at, line in enumerate(source)
            if line.strip() == piece[0].strip()
        )
        return any(shifted(piece) == shifted(start) for start in starts)

    pieces = [piece.strip("\n").splitlines() for piece in re.split(r"^ *# \.\.\.\n", text, flags=re.M)]
    return all(map(has, pieces))


@pytest.mark.parametrize("block", PYTHON, ids=[block.where for block in PYTHON])
def test_python_runs(block: Block) -> None:
    if is_part_of_a_file(block.text):
        return
    code = compile(block.text, block.where, "exec")
    if block.first_line in GPU_BLOCKS:
        pytest.skip(GPU_BLOCKS[block.first_line])
    scope: dict[str, object] = {}
    exec(PRELUDES[block.first_line], scope)
    exec(code, scope)
    for value in scope.values():
        if isinstance(value, nanokv.NanoKVCache):
            value.close()


def test_the_examples_of_the_documents_are_all_there() -> None:
    named = {name for path in DOCUMENTS for name in re.findall(r"\bexamples/\w+\.py", path.read_text(encoding="utf-8"))}
    assert named == {f"examples/{path.name}" for path in (ROOT / "examples").glob("*.py")}


# --- commands ---------------------------------------------------------------------------------
@pytest.fixture
def world(shm_name: str, tmp_path: Path) -> Iterator[str]:
    """The name of a living world that holds KEY. It was saved to FILE."""
    with nanokv.NanoKVCache(1 << 20, name=shm_name, rank=0, world_size=1, page_bytes=4096) as cache:
        cache.put("KEY", torch.ones(3))
        cache.save(tmp_path / "FILE")
        yield shm_name


@pytest.mark.exhaustive
@pytest.mark.parametrize("command", [command for command in commands() if command not in NOT_RUN])
def test_a_command_runs(command: str, world: str, tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    trace.write_text('{"hash_ids": [1, 2]}\n{"hash_ids": [1, 3]}\n')
    places = {"NAME": world, "NEW": f"{world}-new", "OUT": str(tmp_path), "TRACE": str(trace)}
    places["FILE"] = str(tmp_path / "FILE")
    line = SMALLER.get(command, command)
    for word, place in places.items():
        line = line.replace(word, place)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "PYTHONPATH": str(ROOT)}
    words = shlex.split(line)
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]


def test_the_reasons_are_true() -> None:
    assert NOT_RUN.keys() | SMALLER.keys() <= set(commands())
    ci = (ROOT / ".ci" / "run").read_text()
    makefile = (ROOT / "Makefile").read_text()
    for command, reason in NOT_RUN.items():
        if reason is IN_CI:
            assert re.search(rf"^{command}", ci, re.M), command
        if command.startswith("make "):
            assert re.search(rf"^{command.split()[1]}:", makefile, re.M), command


# --- what README and pages claim in words --------------------------------------------------------------
def test_sizes_are_as_the_pages_say() -> None:
    geometry = Geometry.plan(1 << 30, 256 << 10, 1)
    assert geometry.class_pages == (
        1,
        2,
        3,
        4,
        5,
        6,
        7,
        8,
        10,
        12,
        14,
        16,
        20,
        24,
        28,
        32,
        40,
        48,
        56,
        64,
        80,
        96,
        112,
        128,
    )
    assert geometry.max_object_bytes == 32 << 20
    assert int(geometry.extent_pages(np.array([geometry.pages_of(260 << 10)]))[0]) * geometry.page_bytes == 512 << 10
    assert round(100 * 260 / 512) == 51


def test_the_pages_count_scenarios_and_mutants_rightly() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"{len(SCENARIOS)} scenarios under a simulated weak memory, {len(MUTANTS)} mutants" in readme
    page = (ROOT / "docs" / "verification.md").read_text(encoding="utf-8")
    assert f"| mutants | {len(MUTANTS)} broken variants" in page


def test_readme_names_every_command() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for command in app.registered_commands:
        assert command.callback is not None
        name = command.callback.__name__.replace("_", "-")
        assert f"nanokv {name}" in text or f"`{name}`" in text, name


def test_readme_names_every_extra() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (said,) = re.findall(r"# extras: (.*)", text)
    assert list(project["optional-dependencies"]) == re.findall(r"(\w+) \(", said)
