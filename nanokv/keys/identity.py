"""What the keys of a cache mean: a block is of use only to the same model, tokenizer, adapter, tenant and layout.

An identity and a namespace are hashed into every digest, and a digest names them: the upper 32 bits of its `key_check`
are their *tag*. So a digest from anywhere (another cache, an event, a dead world, a file) shows whose it is.

Two identities have the same tag once in 2**32. Their keys do not meet all the same, because the other 96 bits of a
digest are a hash of identity and key; but then the digests of one are not refused by the other.
"""

import json
from dataclasses import astuple, dataclass, fields, replace
from typing import NamedTuple

import xxhash

from nanokv.errors import InvalidArgument
from nanokv.keys.kv_layout import KVLayout

TAG_BITS = 32
_LENGTH_BYTES = 8


@dataclass(frozen=True, slots=True)
class Identity:
    """What a cached block depends on, beside its tokens.

    Attributes:
        model: its name. The other texts are empty where there is nothing to tell apart.
        revision: of the model's weights, such as a commit.
        tokenizer: its name and revision, where keys are made of tokens.
        adapter: a LoRA adapter.
        tenant: a user, or an engine's cache salt.
        layout: of the objects. Two layouts never share an object; a reader that knows the writer's layout can still get
            its slices (`PagedKV.get`, `source=`).

    Raises:
        InvalidArgument: a value of another type, or no model.
    """

    model: str
    revision: str = ""
    tokenizer: str = ""
    adapter: str = ""
    tenant: str = ""
    layout: KVLayout | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name == "layout":
                if not isinstance(value, KVLayout | None):
                    raise InvalidArgument(f"layout must be a KVLayout or None, not {value!r}")
            elif not isinstance(value, str):
                raise InvalidArgument(f"{field.name} must be a str, not {value!r}")
        if not self.model:
            raise InvalidArgument("model must not be empty")

    def with_layout(self, layout: KVLayout | None) -> "Identity":
        """The same identity, but for its layout."""
        return replace(self, layout=layout)

    def texts(self) -> list[str]:
        """All that is hashed, in the order of the fields."""
        layout = [] if self.layout is None else [str(value) for value in astuple(self.layout)]
        return [getattr(self, field.name) for field in fields(self) if field.name != "layout"] + layout


def identity_from_json(text: str) -> Identity:
    """An identity from the JSON object of its fields, `layout` an object too.

    Raises:
        InvalidArgument: it is no JSON, has a field that does not exist, or cannot be.
    """
    try:
        given = json.loads(text)
        if isinstance(given.get("layout"), dict):
            given["layout"] = KVLayout(**given["layout"])
        return Identity(**given)
    except (ValueError, TypeError, AttributeError) as error:
        raise InvalidArgument(f"{text!r} is no identity: {error}") from None


class IdentityDigest(NamedTuple):
    """What digests carry of an identity and a namespace."""

    whole: bytes  #: 16 bytes, XXH3-128
    tag: int  #: 32 bits; 0 without identity and namespace, and only then

    @property
    def halves(self) -> tuple[int, int]:
        """The digest as two unsigned words, the upper one first; its upper 32 bits are the tag."""
        upper, lower = int.from_bytes(self.whole[:8], "big"), int.from_bytes(self.whole[8:], "big")
        return self.tag << TAG_BITS | upper & (1 << TAG_BITS) - 1, lower


def digest_of(identity: Identity | None, namespace: str = "") -> IdentityDigest:
    """The digest of an identity within a namespace.

    It hashes the number of texts, and each text (UTF-8) after its length: no two identities give the same bytes.
    """
    texts = [namespace, *(identity.texts() if identity is not None else ())]
    raw = [text.encode("utf-8", "surrogatepass") for text in texts]
    whole = xxhash.xxh3_128_digest(_length(len(raw)) + b"".join(_length(len(each)) + each for each in raw))
    if identity is None and not namespace:
        return IdentityDigest(whole, 0)
    return IdentityDigest(whole, int.from_bytes(whole[: TAG_BITS // 8], "big") or 1)


def _length(count: int) -> bytes:
    return count.to_bytes(_LENGTH_BYTES, "little")
