"""A process that stores objects and waits to be killed: `python -m tests.integrations.sglang.other`.

The first line of stdin holds, as JSON, the settings, the identity's model, and the keys and bytes of the objects; with
"unfinished" the process leaves them half-written, with "own" they lie in its own segment.
"""

import json
import subprocess
import sys
from typing import Any

import torch

from nanokv.integrations.joining import join, parse
from nanokv.keys.identity import Identity


def main() -> None:
    """Store the objects, say so, and wait."""
    given = json.loads(sys.stdin.readline())
    joined = join(parse(given["settings"]), Identity(given["model"]))
    segment = joined.world.rank if given["own"] else 0
    for key, value in given["objects"].items():
        payload = bytearray.fromhex(value)
        if given["unfinished"]:
            joined.world.open_for_write(key, len(payload), preferred_segment=segment)
        else:
            joined.world.put(key, torch.frombuffer(payload, dtype=torch.uint8), preferred_segment=segment)
    print("stored", flush=True)
    sys.stdin.readline()


class Other:
    """That process, seen from a test. The end of a `with` block kills it.

    Args:
        backend: whose store and identity it has.
        objects: bytes by key, without the scope.
    """

    def __init__(self, backend: Any, objects: dict[str, bytes], *, unfinished: bool = False, own: bool = True) -> None:
        pool, identity = backend.pools.get("kv"), backend.cache.options.identity
        given = {
            "settings": backend.storage_config.extra_config["nanokv"],
            "model": identity.model,
            "objects": {f"{pool.scopes[0]}/{key}": value.hex() for key, value in objects.items()},
            "unfinished": unfinished,
            "own": own,
        }
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.integrations.sglang.other"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(given) + "\n")
        self._process.stdin.flush()
        assert self._process.stdout.readline() == "stored\n"

    def __enter__(self) -> "Other":
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.wait(60)
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()


if __name__ == "__main__":
    main()
