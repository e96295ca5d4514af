"""A worker process of the demo, `python -m nanokv.tools.demo.worker ROLE SEED`: jobs on stdin, reports on stdout.

When its stdin ends or SIGTERM comes, a worker leaves its world and ends: no worker outlives its parent.
"""

import json
import os
import queue
import signal
import sys
import threading
import traceback
from dataclasses import asdict
from types import FrameType
from typing import TYPE_CHECKING, Any

from nanokv.tools.demo.job import DECODE_RANK, PREFILL_RANK, Job, Tell, send
from nanokv.tools.demo.prompts import BLOCK_TOKENS, make_prompts, whole_blocks

if TYPE_CHECKING:
    from nanokv.cache.cache import NanoKVCache
    from nanokv.tools.demo.model import Model


# torch and transformers take seconds to import: a `Parent` listens before they are, so that a worker can be ended


# --- the reference: the same model in one process, without NanoKV -----------------------------
def reference(job: Job, model: "Model", tell: Tell) -> None:
    """Report for each prompt the tokens of transformers' `generate`, and digests of the KV of each block."""
    for number, prompt in enumerate(make_prompts(job.prompts, job.seed)):
        tell("reference", prompt=number, tokens=model.generate(prompt, job.tokens), digests=_digests(model, prompt))


def _digests(model: "Model", prompt: list[int]) -> list[str]:
    from nanokv.tools.demo.model import digest, last_block

    kv = model.new_cache()
    digests: list[str] = []
    for i in range(whole_blocks(prompt)):
        model.forward(prompt[i * BLOCK_TOKENS : (i + 1) * BLOCK_TOKENS], kv)
        digests.append(digest(last_block(kv)))
    return digests


# --- the worker -------------------------------------------------------------------------------
GRACE_SECONDS = 10.0  #: after the parent is gone


class Parent:
    """The parent as its worker sees it."""

    def __init__(self) -> None:
        # the output of libraries goes to stderr, so that stdout has only messages
        self._out = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        self._commands: queue.Queue[dict[str, Any]] = queue.Queue()
        threading.Thread(target=self._listen, name="nanokv-demo-parent", daemon=True).start()

    def _listen(self) -> None:
        for line in sys.stdin:
            self._commands.put(json.loads(line))
        os.kill(os.getpid(), signal.SIGTERM)
        threading.Event().wait(GRACE_SECONDS)
        os._exit(1)  # the main thread is stuck where no signal reaches it

    def tell(self, event: str, **fields: Any) -> None:
        """Report an event."""
        send(self._out, {"event": event} | fields)

    def command(self) -> dict[str, Any]:
        """Wait for the next command: a job, or {} for "go on"."""
        return self._commands.get()


def main() -> int:
    """Load the model, then do jobs until the process ends."""
    role, seed = sys.argv[1], int(sys.argv[2])
    signal.signal(signal.SIGTERM, _leave)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides
    parent = Parent()
    try:
        from nanokv.tools.demo.model import Model

        model = Model(seed)
        parent.tell("loaded")
        while True:
            _work(role, Job(**parent.command()), model, parent)
    except Exception as error:
        traceback.print_exc()
        parent.tell("failed", error=f"{type(error).__name__}: {error}")
    return 1


def _leave(number: int, frame: FrameType | None) -> None:
    signal.signal(number, signal.SIG_IGN)  # a second signal must not interrupt the cleaning up
    raise SystemExit(0)


def _work(role: str, job: Job, model: "Model", parent: Parent) -> None:
    if role == "reference":
        reference(job, model, parent.tell)
        return
    from nanokv.tools.demo.decode import decode
    from nanokv.tools.demo.prefill import prefill

    rank, work = (PREFILL_RANK, prefill) if role == "prefill" else (DECODE_RANK, decode)
    with _join(job, rank) as cache:
        report = work(job, model, cache, parent.tell)
        parent.tell("done", report=asdict(report))
        parent.command()  # stay until both are done: the other one needs v1's master, and the segment that it reads
    parent.tell("closed")


def _join(job: Job, rank: int) -> "NanoKVCache":
    from nanokv.cache.cache import NanoKVCache
    from nanokv.tools.demo.model import BLOCK_BYTES
    from nanokv.tools.demo.prompts import make_prompts, whole_blocks

    blocks = sum(whole_blocks(prompt) for prompt in make_prompts(job.prompts, job.seed))
    return NanoKVCache(
        heap_bytes=2 * blocks * BLOCK_BYTES,
        page_bytes=BLOCK_BYTES,
        name=job.name,
        rank=rank,
        world_size=2,
        alloc=job.alloc,
        evict=False,  # all blocks fit: a full heap is an error of the demo
        namespace=f"nanokv-demo/llama/seed {job.seed}/float32",
    )


if __name__ == "__main__":
    sys.exit(main())
