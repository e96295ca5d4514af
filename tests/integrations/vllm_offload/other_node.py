"""A process that stores blocks and waits to be killed: `python -m tests.integrations.vllm_offload.other_node`.

The first line of stdin holds, as JSON, the settings, the identity's fields, and the keys and bytes of the blocks; with
"unfinished" the process leaves them half-written.
"""

import json
import subprocess
import sys
from typing import Any

import torch

from nanokv.integrations.joining import join, parse
from nanokv.keys.identity import Identity


def main() -> None:
    """Store the blocks, say so, and wait."""
    given = json.loads(sys.stdin.readline())
    joined = join(parse(given["settings"]), Identity(**given["identity"]))
    for key, value in given["blocks"].items():
        name, payload = bytes.fromhex(key), bytearray.fromhex(value)
        if given["unfinished"]:
            joined.world.open_for_write(name, len(payload), preferred_segment=joined.world.rank)
        else:
            joined.cache.put(name, torch.frombuffer(payload, dtype=torch.uint8), preferred_segment=joined.world.rank)
    print("stored", flush=True)
    sys.stdin.readline()


class OtherNode:
    """That process, seen from a test. `kill` ends it at once; so does the end of a `with` block."""

    def __init__(
        self,
        settings: dict[str, Any],
        identity: Identity,
        blocks: dict[bytes, bytes],
        *,
        unfinished: bool = False,
    ) -> None:
        fields = {"model": identity.model, "revision": identity.revision}
        given = {"settings": settings, "identity": fields, "unfinished": unfinished}
        given["blocks"] = {key.hex(): value.hex() for key, value in blocks.items()}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.integrations.vllm_offload.other_node"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(given) + "\n")
        self._process.stdin.flush()
        assert self._process.stdout.readline() == "stored\n"

    def kill(self) -> None:
        """SIGKILL. Idempotent."""
        self._process.kill()
        self._process.wait(60)
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()

    def __enter__(self) -> "OtherNode":
        return self

    def __exit__(self, *error: object) -> None:
        self.kill()


if __name__ == "__main__":
    main()
