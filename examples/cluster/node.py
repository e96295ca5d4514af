"""One node of the demo, `python -m examples.cluster.node SETTINGS`: commands come on stdin, reports go to stdout.

Every node lends its memory to the cluster. "prefill" computes blocks too, and "decode" reads them and generates.
"""

import json
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import torch

import nanokv
from nanokv import NanoKVCluster
from nanokv.errors import PeerLost
from nanokv.tools.demo.model import BLOCK_BYTES, Model, last_block
from nanokv.tools.demo.prompts import BLOCK_TOKENS, make_prompts
from nanokv.tools.demo.worker import Parent

READER = "decode"
ENGINES = ("prefill", READER)  #: the nodes that have a model; others only lend their memory
LOOK = 0.002  #: seconds between two reads of who watches a node
Tell = Callable[..., None]


def read(cluster: NanoKVCluster, keys: Sequence[bytes]) -> tuple[list[torch.Tensor | None], int]:
    """The blocks of keys, None for what is not there; and how many of these are so because their node is lost."""
    try:
        return cluster.get_many(keys), 0
    except PeerLost:
        pass  # which of them? one after another: a node that was just lost is not asked again
    blocks: list[torch.Tensor | None] = []
    lost = 0
    for key in keys:
        try:
            blocks.append(cluster.get(key, None))
        except PeerLost:
            blocks.append(None)
            lost += 1
    return blocks, lost


def put(cluster: NanoKVCluster, blocks: dict[bytes, torch.Tensor]) -> list[str]:
    """Put blocks at the homes of their keys; those of a home that is lost, to the node that will read them.

    Returns the node of each.
    """
    keys = list(blocks)
    nodes = [cluster.home(key) for key in keys]
    lost = []
    for i, error in enumerate(cluster.put_many(keys, list(blocks.values()))):
        if isinstance(error, PeerLost):
            nodes[i] = READER
            lost.append(keys[i])
        elif error is not None:
            raise error
    if lost:
        for error in cluster.put_many(lost, [blocks[key] for key in lost], preferred_segment=(READER, None)):
            if error is not None:
                raise error
    return nodes


def append(kv: Any, block: torch.Tensor) -> None:
    """Add the KV of a block to a DynamicCache."""
    for layer, (keys, values) in zip(kv.layers, block, strict=True):
        layer.update(keys[None], values[None])


class Node:
    """What every node does; one method a command. Each returns its report."""

    def __init__(self, cluster: NanoKVCluster) -> None:
        self._cluster = cluster

    def nodes(self, count: int) -> dict[str, Any]:
        """Wait until so many nodes are there."""
        while len(self._cluster.nodes) < count:
            time.sleep(LOOK)
        return {}


class Engine(Node):
    """What a node with a model does."""

    def __init__(self, cluster: NanoKVCluster, model: Model, prompts: list[list[int]], tell: Tell) -> None:
        super().__init__(cluster)
        self._model, self._prompts, self._tell = model, prompts, tell
        self._keys = model.prefixes(cluster.world).keys

    def prefill(self, prompt: int) -> dict[str, Any]:
        """Read the blocks that are there, compute the others, each with those before it, and put them."""
        tokens = self._prompts[prompt]
        keys, kv, computed = self._keys(tokens), self._model.new_cache(), {}
        for i, (key, block) in enumerate(zip(keys, read(self._cluster, keys)[0], strict=True)):
            if block is not None:
                append(kv, block)
                continue
            self._model.forward(tokens[i * BLOCK_TOKENS : (i + 1) * BLOCK_TOKENS], kv)
            computed[i] = key, last_block(kv)
        return {"put_to": dict(zip(computed, put(self._cluster, dict(computed.values())), strict=True))}

    def decode(self, prompt: int, tokens: int) -> dict[str, Any]:
        """Read all blocks and generate; or report how many are missing, and generate nothing."""
        given = self._prompts[prompt]
        before = self._cluster.stats()["remote_hits"]
        blocks, lost = read(self._cluster, self._keys(given))
        missing = sum(block is None for block in blocks)
        report = {"blocks": len(blocks), "missing": missing, "lost": lost, "tokens": []}
        if missing:
            return report
        report["remote"] = self._cluster.stats()["remote_hits"] - before
        kv = self._model.new_cache()
        for block in blocks:
            assert block is not None
            rest = len(given) - 1 - kv.get_seq_length()  # the last one is always computed: the first new comes from it
            append(kv, block[:, :, :, :rest])
        report["tokens"] = self._generate(given[kv.get_seq_length() :], kv, tokens)
        return report

    def _generate(self, fed: list[int], kv: Any, count: int) -> list[int]:
        tokens: list[int] = []
        while len(tokens) < count:
            tokens.append(self._model.forward(fed, kv))
            fed = tokens[-1:]
            self._tell("token", number=len(tokens))
        return tokens

    def watch(self, prompt: int, block: int, owner: str) -> dict[str, Any]:
        """From now on read a block, in a thread; tell when its owner is lost, and when that is no member any more."""
        key = self._keys(self._prompts[prompt])[block]
        threading.Thread(target=self._watch, args=(key, owner), daemon=True).start()
        return {}

    def _watch(self, key: bytes, owner: str) -> None:
        try:
            while True:
                self._cluster.get(key)
                time.sleep(LOOK)
        except PeerLost as error:
            self._tell("lost", when=time.monotonic(), error=str(error))
        while owner in self._cluster.nodes:
            time.sleep(LOOK)
        self._tell("left", when=time.monotonic())


def serve(parent: Parent, settings: dict[str, Any]) -> None:
    """Join, and do what the parent says until the process ends."""
    prompts = make_prompts(settings["prompts"], settings["seed"])
    model = Model(settings["seed"]) if settings["options"]["node"] in ENGINES else None
    room = sum(len(prompt) // BLOCK_TOKENS for prompt in prompts)  # on each node: all blocks fit when others are gone
    lock = threading.Lock()

    def tell(event: str, **fields: Any) -> None:
        with lock:  # the thread that watches tells too
            parent.tell(event, **fields)

    with (
        nanokv.NanoKVCache(room * BLOCK_BYTES, page_bytes=BLOCK_BYTES, evict=False) as world,
        NanoKVCluster(world, settings["registry"], **settings["options"]) as cluster,
    ):
        node = Node(cluster) if model is None else Engine(cluster, model, prompts, tell)
        tell("joined")
        while True:
            command = parent.command()
            report = getattr(node, command.pop("do"))(**command)
            tell("done", **report)


def main() -> int:
    """The process."""
    signal.signal(signal.SIGTERM, _leave)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides
    parent = Parent()
    try:
        serve(parent, json.loads(sys.argv[1]))
    except Exception as error:
        traceback.print_exc()
        parent.tell("failed", error=f"{type(error).__name__}: {error}")
    return 1


def _leave(number: int, frame: object) -> None:
    signal.signal(number, signal.SIG_IGN)  # a second signal must not interrupt the cleaning up
    raise SystemExit(0)


if __name__ == "__main__":
    sys.exit(main())
