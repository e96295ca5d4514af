"""Three nodes, a network between them, and one is killed: every token must equal a run without a cache.

    python -m examples.cluster.demo

"prefill" computes the KV of prompts block by block, and puts each block at its key's home, so a third of them lies on
the node "memory". "decode" reads the blocks and generates. In the middle, "memory" is killed.
"""

import argparse
import contextlib
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from importlib.util import find_spec
from typing import NoReturn

from examples.cluster.crew import Crew, DemoFailed, Message
from nanokv.check.lab.layout import LabLayout, LayoutError, loopback, namespaces
from nanokv.tools.demo.prompts import make_prompts

NODES = ("prefill", "decode", "memory")
TRIES = 20  #: of one prompt; one or two are usual: nodes may see the end of a lease at different times
INTERRUPTED = 130  #: exit code


class Story:
    """What happens, told line by line.

    Attributes:
        equal, wanted: tokens that are those of the reference, and how many there are.
        computed_again: blocks that had been lost.
        left: when prefill saw that the lease of the killed node has ended; None: not yet.
    """

    def __init__(self, crew: Crew, prompts: list[list[int]], tokens: int) -> None:
        self._crew, self._prompts, self._tokens = crew, prompts, tokens
        self._started = time.monotonic()
        self._middle = (len(prompts) - 1) // 2
        self._killed_at: float | None = None
        self._kill_after: int | None = None
        self._where: dict[int, dict[str, str]] = {}  #: of each prompt's blocks
        self.left: float | None = None
        self.equal = self.wanted = self.computed_again = 0

    def say(self, what: str) -> None:
        """Print a line, with the time."""
        print(f"{time.monotonic() - self._started:5.1f} s  {what}", flush=True)

    def _hear(self) -> tuple[str, Message]:
        """The next message; those that may come at any time are dealt with."""
        name, message = self._crew.listen()
        if message["event"] == "token" and message["number"] == self._kill_after:
            self._kill_after = None
            self._killed_at = self._crew.kill(NODES[2])
            self.say(f"memory is killed (SIGKILL), {message['number']} tokens into prompt {self._middle}")
        elif message["event"] == "lost":
            self.say(f"a read by prefill is PeerLost {1000 * self._since_the_kill(message):.0f} ms after the kill")
        elif message["event"] == "left":
            self.left = message["when"]
            self.say(
                f"memory's lease has ended {self._since_the_kill(message):.1f} s after the kill: keys have new homes"
            )
        return name, message

    def _since_the_kill(self, message: Message) -> float:
        """Seconds."""
        assert self._killed_at is not None
        return float(message["when"] - self._killed_at)

    def _ask(self, node: str, do: str, **arguments: object) -> Message:
        """Have a node do something, and return its report."""
        self._crew.give(node, do, **arguments)
        while (answer := self._hear()) != (node, answer[1]) or answer[1]["event"] != "done":
            pass
        return answer[1]

    # --- the chapters ---
    def meet(self) -> None:
        """Wait until all nodes know each other."""
        for _ in NODES:
            while self._hear()[1]["event"] != "joined":
                pass
        for node in NODES:
            self._ask(node, "nodes", count=len(NODES))
        self.say("prefill, decode and memory are members of one cluster")

    def prefill(self) -> None:
        """Compute and put all blocks."""
        for prompt in range(len(self._prompts)):
            self._where[prompt] = self._ask("prefill", "prefill", prompt=prompt)["put_to"]
        counts = Counter(node for found in self._where.values() for node in found.values())
        lie = ", ".join(f"{counts[node]} on {node}" for node in NODES)
        self.say(f"prefill has put {counts.total()} blocks of {len(self._prompts)} prompts: {lie}")

    def decode(self, expected: list[list[int]]) -> None:
        """Decode each prompt. In the middle of the middle one the third node is killed."""
        for prompt, tokens in enumerate(expected):
            if prompt == self._middle:
                self._watch()
                self._kill_after = (self._tokens + 1) // 2
            if prompt == self._middle + 2:
                self._wait_for_the_lease()
            self._decode_one(prompt, tokens)

    def _watch(self) -> None:
        """Let prefill read a block of the third node from now on."""
        there = [(p, int(i)) for p, found in self._where.items() for i, node in found.items() if node == NODES[2]]
        if not there:
            raise DemoFailed("no block lies on memory: take another seed")
        prompt, block = there[0]
        self._ask("prefill", "watch", prompt=prompt, block=block, owner=NODES[2])

    def _wait_for_the_lease(self) -> None:
        while self.left is None:
            self._hear()

    def _decode_one(self, prompt: int, expected: list[int]) -> None:
        told = ""
        for _ in range(TRIES):
            report = self._ask("decode", "decode", prompt=prompt, tokens=self._tokens)
            if not report["missing"]:
                break
            why = f"{report['lost']} PeerLost" if report["lost"] else "a miss each"
            again = len(self._ask("prefill", "prefill", prompt=prompt)["put_to"])
            self.computed_again += again
            told += f"{report['missing']} of {report['blocks']} blocks are gone ({why}), {again} computed again; "
        equal = sum(a == b for a, b in zip(report["tokens"], expected, strict=False))
        self.equal, self.wanted = self.equal + equal, self.wanted + len(expected)
        if told:
            self.say(f"prompt {prompt}: {told[:-2]}")
        self.say(
            f"prompt {prompt}: decode read {report['blocks']} blocks, {report.get('remote', 0)} from other nodes; "
            f"{equal} of {len(expected)} tokens equal"
        )


def reference(prompts: list[list[int]], tokens: int, seed: int) -> list[list[int]]:
    """The tokens after each prompt, computed in this process from whole prompts: no cache, no cluster."""
    from nanokv.tools.demo.model import Model

    model = Model(seed)
    return [model.generate(prompt, tokens) for prompt in prompts]


def tell(layout: LabLayout, prompts: list[list[int]], tokens: int, seed: int) -> int:
    """The whole story. Returns the exit code."""
    for host in layout.hosts:
        print(f"  {host.name:<8} {host.address:<10} {host.device}")
    print(f"  registry {layout.registry.partition('://')[0]}; bytes go over sockets of NanoKV's own", flush=True)
    with Crew(layout, prompts=len(prompts), seed=seed) as crew, deaf_at_the_end():
        story = Story(crew, prompts, tokens)
        expected = reference(prompts, tokens, seed)
        story.meet()
        story.prefill()
        story.decode(expected)
        moved = layout.bytes_moved()
    if moved is not None:
        print(f"{moved / 2**20:.1f} MiB went over the bridge between the namespaces")
    return verdict(story)


def verdict(story: Story) -> int:
    """The last line, and the exit code."""
    if story.equal != story.wanted:
        print(f"{story.wanted - story.equal} of {story.wanted} tokens DIFFER from the run without a cache")
        return 1
    if not story.computed_again:
        print("no block was lost, so this proves nothing: take another seed")
        return 1
    print(f"Every token equal: {story.equal} of {story.wanted} are those of a run without a cache")
    return 0


# --- what the machine lacks, and signals -------------------------------------------------------
def lacking() -> str | None:
    """Why the demo cannot run here; None: it can."""
    missing = [name for name in ("transformers", "zmq", "cryptography") if find_spec(name) is None]
    if missing:
        return f"the demo needs {' and '.join(missing)}: pip install 'nanokv[cluster,demo]'"
    return None


@contextlib.contextmanager
def laid_out(name: str) -> Iterator[LabLayout]:
    """The best layout that this machine allows; a line says what it is, and what is missing."""
    with contextlib.ExitStack() as stack:
        try:
            layout = stack.enter_context(namespaces(name, NODES))
            print("Three nodes, each in a network namespace of its own, on one bridge:")
        except LayoutError as error:
            layout = stack.enter_context(loopback(name, NODES))
            print(f"No network namespaces here ({error}): three nodes on loopback:")
        if layout.registry.startswith("file:"):
            print("  etcd is not installed (Debian: etcd-server): a folder takes its place")
        yield layout


@contextlib.contextmanager
def deaf_at_the_end() -> Iterator[None]:
    """Whatever ends the block, no signal interrupts the cleaning up that follows."""
    try:
        yield
    finally:
        _be_deaf()


def _be_deaf() -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def _interrupt(number: int, frame: object) -> NoReturn:
    _be_deaf()
    raise KeyboardInterrupt


def main() -> int:
    """Run the demo: 0 only if every token is equal; 2 if it cannot run here, 130 if it was interrupted."""
    parser = argparse.ArgumentParser(prog="python -m examples.cluster.demo", description=__doc__.split("\n")[0])
    parser.add_argument("--prompts", type=int, default=6, choices=range(4, 33), metavar="4..32")
    parser.add_argument("--tokens", type=int, default=24, choices=range(2, 129), metavar="2..128")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    problem = lacking()
    if problem:
        print(problem, file=sys.stderr)
        return 2
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)
    try:
        with laid_out(f"nanokv-{os.getpid()}") as layout:
            return tell(layout, make_prompts(given.prompts, given.seed), given.tokens, given.seed)
    except (DemoFailed, LayoutError) as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; nothing is left", file=sys.stderr)
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
