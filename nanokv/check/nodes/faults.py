"""What is done to nodes: each fault has a begin and an end, and cuts some pairs of nodes off from each other."""

from collections.abc import Callable
from typing import NamedTuple

from nanokv.check.lab import links
from nanokv.check.lab.layout import LabLayout
from nanokv.check.nodes.crew import Crew


class Scene(NamedTuple):
    """To whom a fault is done."""

    crew: Crew
    layout: LabLayout
    victim: str
    other: str  #: the second node, of faults between two

    def stop(self) -> None:
        """SIGSTOP to the victim."""
        self.crew.nodes[self.victim].suspend()

    def go_on(self) -> None:
        """SIGCONT to the victim."""
        self.crew.nodes[self.victim].resume()

    def kill(self) -> None:
        """SIGKILL to the victim."""
        self.crew.kill(self.victim)

    def start(self) -> None:
        """A new process of the victim, as a member."""
        self.crew.start(self.victim).joined()

    def on_link(self, action: Callable[..., None]) -> None:
        """Do something to the victim's link."""
        action(self.layout, self.crew.hosts[self.victim])

    def on_both(self, action: Callable[..., None]) -> None:
        """Do something between the two."""
        action(self.layout, self.crew.hosts[self.victim], self.crew.hosts[self.other])

    def kill_etcd(self) -> None:
        """SIGKILL to the registry."""
        assert self.layout.etcd is not None
        self.layout.etcd.kill()

    def start_etcd(self) -> None:
        """Start the registry again, with what it had stored."""
        assert self.layout.etcd is not None
        self.layout.etcd.start()


class Fault(NamedTuple):
    """A kind of fault.

    Attributes:
        name: what the row of the table says.
        begin, end: do it, and undo it.
        between_two: it cuts two nodes off from each other; else the victim from all.
        cuts: False: it cuts nobody off.
        kills: what the victim stored is gone.
        until_left: it lasts until all others have seen that the victim is no member any more, and a while longer.
        least, most: how long it lasts, or that while, in timeouts of a node.
        needs_namespaces, needs_etcd: what the layout must have.
    """

    name: str
    begin: Callable[[Scene], None]
    end: Callable[[Scene], None]
    least: float
    most: float
    between_two: bool = False
    cuts: bool = True
    kills: bool = False
    until_left: bool = False
    needs_namespaces: bool = False
    needs_etcd: bool = False

    def is_cut(self, scene: Scene, one: str, two: str) -> bool:
        """Whether it cuts two nodes off from each other."""
        if not self.cuts or one == two:
            return False
        if self.between_two:
            return {one, two} == {scene.victim, scene.other}
        return scene.victim in (one, two)

    def is_possible(self, layout: LabLayout) -> bool:
        """Whether this layout has what it needs."""
        return (layout.is_apart or not self.needs_namespaces) and (layout.etcd is not None or not self.needs_etcd)


FAULTS = (
    Fault("killed, started again", Scene.kill, Scene.start, 0.3, 1.5, kills=True, until_left=True),
    Fault("stopped, shorter than timeout", Scene.stop, Scene.go_on, 0.2, 0.5),
    Fault("stopped, longer than ttl", Scene.stop, Scene.go_on, 0.3, 1.5, until_left=True),
    Fault(
        "link down, shorter than ttl",
        lambda scene: scene.on_link(links.link_down),
        lambda scene: scene.on_link(links.link_up),
        1.1,
        1.3,
        needs_namespaces=True,
    ),
    Fault(
        "link down, longer than ttl",
        lambda scene: scene.on_link(links.link_down),
        lambda scene: scene.on_link(links.link_up),
        0.3,
        1.5,
        until_left=True,
        needs_namespaces=True,
    ),
    Fault(
        "packets between two are lost",
        lambda scene: scene.on_both(links.lose_packets),
        lambda scene: scene.on_both(links.stop_losing_packets),
        2.0,
        3.0,
        between_two=True,
        needs_namespaces=True,
    ),
    Fault(
        "no route between two",
        lambda scene: scene.on_both(links.refuse_packets),
        lambda scene: scene.on_both(links.stop_refusing_packets),
        2.0,
        3.0,
        between_two=True,
        needs_namespaces=True,
    ),
    Fault("etcd killed, started again", Scene.kill_etcd, Scene.start_etcd, 3.0, 4.0, cuts=False, needs_etcd=True),
)
