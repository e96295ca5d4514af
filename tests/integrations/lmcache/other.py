"""A process with a connector, or an adapter, that waits to be killed: `python -m tests.integrations.lmcache.other`.

The first line of stdin holds, as JSON, the kind, its settings, and what it does before: store chunks of some numbers
(their bytes are made from their numbers), and, if it is an adapter, lock them.
"""

import asyncio
import json
import os
import subprocess
import sys
import threading
from typing import Any


def main() -> None:
    """Do what is asked, tell what was found, and wait."""
    from tests.integrations.lmcache import parts

    given = json.loads(sys.stdin.readline())
    found: list[Any] = []
    if given["kind"] == "connector":
        loop = asyncio.new_event_loop()
        threading.Thread(target=loop.run_forever, daemon=True).start()
        made = parts.Backends(loop, given["settings"])
        read = [made.remote.get_blocking(parts.key(number)) for number in given["read"]]
        found = [None if each is None else parts.content(each).hex() for each in read]
        for number in given["store"]:
            made.remote.submit_put_task(parts.key(number), made.chunk(number)).result(60)
    else:
        from tests.integrations.lmcache.calls import load, look_up, store

        adapter = parts.adapter(parts.spec(**given["settings"]))
        keys, objects = [parts.object_key(n) for n in given["read"]], [parts.memory() for _ in given["read"]]
        if keys:
            found = [
                parts.content(each).hex() if there else None
                for each, there in zip(objects, load(adapter, keys, objects), strict=True)
            ]
        if given["store"]:
            store(adapter, [parts.object_key(n) for n in given["store"]], [parts.memory(n) for n in given["store"]])
        if given["lock"]:
            assert all(look_up(adapter, [parts.object_key(n) for n in given["lock"]]))
    print("found " + json.dumps(found), flush=True)
    sys.stdin.readline()
    os._exit(1)


class Other:
    """That process, seen from a test. The end of a `with` block kills it.

    Attributes:
        found: the bytes of the chunks that it was to read, in hexadecimal, or None.
    """

    def __init__(self, kind: str, settings: dict[str, Any], **what: list[int]) -> None:
        given = {"kind": kind, "settings": settings, "read": [], "store": [], "lock": []} | what
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.integrations.lmcache.other"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(given) + "\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            if line.startswith("found "):  # LMCache writes its log there
                self.found = json.loads(line.removeprefix("found "))
                return
        raise AssertionError("the other process has ended")

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
