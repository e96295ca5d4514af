"""The keys of a cluster in etcd, and the requests on them, as the gateway takes them.

nanokv/<name>/members/<id>   the card of a member, under its lease
nanokv/<name>/secret         the secret of the cluster
nanokv/<name>/incarnation    the number of the last process that joined
"""

import base64
from collections.abc import Mapping
from typing import Any, NamedTuple

from nanokv.cluster.membership.base import is_name

Json = dict[str, Any]


def text64(data: bytes) -> str:
    """Bytes, in JSON."""
    return base64.b64encode(data).decode()


def bytes64(text: object) -> bytes:
    """Bytes from JSON; those of a field that was left out are empty."""
    return base64.b64decode(str(text or ""))


class KeyValue(NamedTuple):
    """A key with its value."""

    key: str
    value: bytes
    lease: int  #: 0: none
    revision: int  #: of the last change

    @classmethod
    def of(cls, kv: Mapping[str, Any]) -> "KeyValue":
        """From JSON."""
        key = bytes64(kv.get("key")).decode(errors="replace")
        return cls(key, bytes64(kv.get("value")), int(kv.get("lease", 0)), int(kv.get("mod_revision", 0)))


class Keys:
    """The keys of one cluster."""

    def __init__(self, name: str) -> None:
        self.members = f"nanokv/{name}/members/"
        self.secret = f"nanokv/{name}/secret"
        self.incarnation = f"nanokv/{name}/incarnation"

    def member(self, member: str) -> str:
        """The key of a member."""
        return self.members + member

    def member_of(self, key: str) -> str | None:
        """The member whose key this is; None for a key that is none."""
        member = key.removeprefix(self.members)
        return member if is_name(member) else None

    def all_members(self) -> Json:
        """What a request for the keys of all members says."""
        start = self.members.encode()
        return {"key": text64(start), "range_end": text64(start[:-1] + bytes([start[-1] + 1]))}


def put(key: str, value: bytes, lease: int = 0) -> Json:
    """One step of a transaction."""
    return {"request_put": {"key": text64(key.encode()), "value": text64(value), "lease": str(lease)}}


def put_if_absent(key: str, value: bytes, lease: int = 0) -> Json:
    """A transaction; it answers with the key if it is there."""
    compare = {"key": text64(key.encode()), "target": "CREATE", "result": "EQUAL", "create_revision": "0"}
    return _transaction(compare, put(key, value, lease), key)


def put_if_held(key: str, value: bytes, lease: int) -> Json:
    """A transaction that replaces the value of a key under this lease; it answers with the key if that has another."""
    compare = {"key": text64(key.encode()), "target": "LEASE", "result": "EQUAL", "lease": str(lease)}
    return _transaction(compare, put(key, value, lease), key)


def put_if_unchanged(key: str, value: bytes, revision: int) -> Json:
    """A transaction that replaces the value that a key got in a revision; 0: it has none."""
    compare = {"key": text64(key.encode()), "target": "MOD", "result": "EQUAL", "mod_revision": str(revision)}
    return _transaction(compare, put(key, value), key)


def _transaction(compare: Json, success: Json, key: str) -> Json:
    otherwise = {"request_range": {"key": text64(key.encode())}}
    return {"compare": [compare], "success": [success], "failure": [otherwise]}


def found(answer: Mapping[str, Any]) -> KeyValue | None:
    """What a transaction found instead of putting; None if it has put, or there is nothing."""
    if answer.get("succeeded"):
        return None
    kvs = answer["responses"][0]["response_range"].get("kvs", [])
    return KeyValue.of(kvs[0]) if kvs else None
