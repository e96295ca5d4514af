"""The processes of the nodes as the check sees them: it starts them, has them do something, kills and stops them."""

import contextlib
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from nanokv.check.command_process import Program
from nanokv.check.lab.layout import Host, LabLayout
from nanokv.check.nodes.node import NodeCommands
from nanokv.heap.shm import list_worlds, remove_world

UCX = {"UCX_TLS": "tcp,self"}  #: else UCX sees that all are on one host, and takes its shared memory


class NodeProcess(Program):
    """The process of one node. It is there at once; `joined` waits until it is a member."""

    patience = 120.0  #: the longest answers, of `empty` and `pause`, take seconds. More is a hang

    def __init__(self, layout: LabLayout, host: Host, settings: dict[str, Any]) -> None:
        environment = {"OMP_NUM_THREADS": "1"} | UCX
        log = layout.folder / f"{host.name}.{settings['run']}.log"
        commands = partial(NodeCommands, **settings)
        super().__init__(f"node {host.name}", commands, enter=host.enter, environment=environment, log=log)
        self.send("nodes")

    joined = Program.answer  #: the members that it knows


class Crew(contextlib.AbstractContextManager["Crew"]):
    """A node on each host of a layout. Used in a `with` block; at its end no process is left.

    Args:
        options: of `NanoKVCluster`, for each node; but with link="mapped" they map each other's memory, that of worlds
            with a name, and of others.
        mutant: one of `mutants.MUTANTS`; "": none.
    """

    def __init__(self, layout: LabLayout, options: dict[str, Any], mutant: str = "") -> None:
        self._layout, self._options, self._mutant = layout, options, mutant
        self.hosts = {host.name: host for host in layout.hosts}
        self.names = sorted(self.hosts)
        self.runs = dict.fromkeys(self.names, -1)  #: how often each was started again
        self.nodes: dict[str, NodeProcess] = {}
        try:
            for name in self.names:
                self.start(name)
            for node in self.nodes.values():
                node.joined()
        except BaseException:
            self.stop()
            raise

    def start(self, name: str) -> NodeProcess:
        """Start a node that is not there, in a new process."""
        host = self.hosts[name]
        self.runs[name] += 1
        options = {"node": name, "bind": host.address} | self._options
        world: dict[str, Any] = {}
        if options["link"] == "nixl":
            options["devices"] = host.device
        elif options["link"] == "mapped":
            options["link"], world = "wire", {"guests": len(self.names)}
            if self.names.index(name) % 2:  # every other one in shared memory, where ranks may come and go
                world |= {"name": self._world_name(name), "rank": 0, "world_size": 2}
                world |= {"elastic": True, "on_stale": "replace"}
        registry, run = self._layout.registry, self.runs[name]
        settings = {"registry": registry, "options": options, "world": world, "names": self.names, "run": run}
        settings["mutant"] = self._mutant
        self.nodes[name] = NodeProcess(self._layout, host, settings)
        return self.nodes[name]

    def kill(self, name: str) -> None:
        """SIGKILL to a node; `start` brings it back."""
        with self.nodes.pop(name) as node:
            node.kill()

    def ask_each(self, command: str, *arguments: Any, only: Iterable[str] | None = None) -> dict[str, Any]:
        """Have all nodes do something at the same time. Returns their answers, by name."""
        names = self.names if only is None else list(only)
        with ThreadPoolExecutor(len(names)) as pool:
            answers = pool.map(lambda name: self.nodes[name].ask(command, *arguments), names)
            return dict(zip(names, answers, strict=True))

    def stop(self) -> None:
        """End all nodes. Idempotent."""
        with ThreadPoolExecutor(max(len(self.nodes), 1)) as pool:
            list(pool.map(NodeProcess.end, self.nodes.values()))
        for name in {self._world_name(name) for name in self.names} & set(list_worlds()):
            remove_world(name, force=True)  # of one that was killed last

    def _world_name(self, node: str) -> str:
        return f"{self._layout.name}-{node}"

    def __exit__(self, *error: object) -> None:
        self.stop()
