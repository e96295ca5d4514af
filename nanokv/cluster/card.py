"""What a member tells the others about itself: where its segments lie for the link, and where it listens.

A card is sealed with the cluster's secret: whoever can write to the registry, but does not know the secret, cannot lead
a reader astray. It is not encrypted: who reads the registry knows where the link listens, and over UCX that is the
memory of the process (docs/cluster.md, Security).
"""

import base64
import hashlib
import hmac
import json
from dataclasses import asdict, dataclass, fields
from typing import Any, NamedTuple

from nanokv.cluster.messages.tcp import host_and_port
from nanokv.cluster.seals import HEADS, SEALS
from nanokv.device.fabric.records import LOOK_LINE
from nanokv.device.segment.geometry import Geometry
from nanokv.device.segment.layout import layout_hash
from nanokv.errors import InvalidArgument, NanoKVError

_SEAL_BYTES = 32
_PURPOSE = b"nanokv card\0"


class WorldId(NamedTuple):
    """A node's world: a node that starts anew with a new world has another one."""

    node: str
    controls: bytes  #: the first lines of its control blocks, which name the world


class CardRefused(NanoKVError):
    """A card is not of this cluster, or of another version, or damaged."""


@dataclass(frozen=True, slots=True)
class Card:
    """One member: a process of a node's world.

    Attributes:
        node: the name of the node, the same for all processes of one world.
        rank: of this process in that world.
        incarnation: another number each time that a process joins.
        geometry: of every segment.
        bases: the address of each rank's segment, as the link takes it.
        controls: the first line of each rank's control block.
        checksum: whether the world gives its objects checksums.
        link: the name of the link by which its memory can be read; "": it has none.
        metadata: the link's own card.
        wire: where it takes questions, "tcp://host:port".
        events: where it publishes events.
        about: `ClusterOptions.about`.
        place: where the process runs (`place`).
        devices: the network devices of its link, as UCX names them; "": it has no such.
        local: where it takes questions of processes of its host, "unix:name"; "": nowhere.
        serves: whether it can be asked for its objects; else they are exchanged over the link alone.
        seal: `ClusterOptions.seal`.
    """

    node: str
    rank: int
    incarnation: int
    geometry: Geometry
    bases: tuple[int, ...]
    controls: tuple[bytes, ...]
    checksum: bool
    link: str
    metadata: bytes
    wire: str
    events: str
    about: str = ""
    place: str = ""
    devices: str = ""
    local: str = ""
    serves: bool = True
    seal: str = HEADS

    @property
    def member(self) -> str:
        """The member's name in the registry."""
        return member_name(self.node, self.rank)

    @property
    def world(self) -> WorldId:
        """The world of the member."""
        return WorldId(self.node, b"".join(self.controls))

    def sealed(self, secret: bytes) -> bytes:
        """The card as bytes, for the registry."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        values |= {
            "layout": layout_hash(),
            "geometry": asdict(self.geometry),
            "controls": [_text(line) for line in self.controls],
            "metadata": _text(self.metadata),
        }
        raw = json.dumps(values).encode()
        return _seal(secret, raw) + raw

    @staticmethod
    def opened(sealed: bytes, secret: bytes) -> "Card":
        """The card in bytes of the registry.

        Raises:
            CardRefused: another cluster's secret, or another layout of segments.
        """
        seal, raw = sealed[:_SEAL_BYTES], sealed[_SEAL_BYTES:]
        if not hmac.compare_digest(seal, _seal(secret, raw)):
            raise CardRefused(
                "the card is sealed with another secret (set NANOKV_CLUSTER_SECRET to that of all), or damaged"
            )
        try:
            values: dict[str, Any] = json.loads(raw)
            if values.pop("layout") != layout_hash():
                raise CardRefused(
                    f"node {values.get('node')!r} has segments of another layout: another version of NanoKV"
                )
            geometry = values.pop("geometry")
            values["geometry"] = Geometry(**geometry | {"class_pages": tuple(geometry["class_pages"])})
            values["controls"] = tuple(base64.b64decode(line) for line in values["controls"])
            values["metadata"] = base64.b64decode(values["metadata"])
            values["bases"] = tuple(values["bases"])
            return Card(**values).checked()
        except (KeyError, TypeError, ValueError, AttributeError, InvalidArgument) as error:
            raise CardRefused(f"the card cannot be read: {error!r}") from None

    def checked(self) -> "Card":
        """This card.

        Raises:
            ValueError, InvalidArgument: its fields contradict each other, or are none that a member could have.
        """
        ranks, last = self.geometry.world_size, (1 << 63) - 1 - self.geometry.segment_bytes
        numbers = (self.rank, self.incarnation, *self.bases)
        if not all(type(each) is int for each in numbers) or not 0 <= self.rank < ranks:
            raise ValueError(f"rank {self.rank!r} of {ranks}")
        if not 0 < self.incarnation < 1 << 63 or not all(0 < base <= last for base in self.bases):
            raise ValueError("an incarnation or an address that is none")
        if not len(self.bases) == len(self.controls) == ranks or any(len(c) != LOOK_LINE for c in self.controls):
            raise ValueError(f"{len(self.bases)} segments and {len(self.controls)} lines for {ranks} ranks")
        texts = [self.node, self.link, self.wire, self.events, self.about, self.place, self.devices]
        if not all(isinstance(text, str) for text in (*texts, self.local)) or not isinstance(self.serves, bool):
            raise ValueError("a text that is none")
        if self.seal not in SEALS:
            raise ValueError(f"a seal {self.seal!r}")
        for address in (self.wire, self.events):
            host_and_port(address)
        return self


def member_name(node: str, rank: int) -> str:
    """The name of a member in the registry."""
    return f"{node}.{rank}"


def _text(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


def _seal(secret: bytes, raw: bytes) -> bytes:
    return hmac.digest(secret, _PURPOSE + raw, hashlib.sha256)
