"""How the bytes of a block's K and V are arranged: what a reader must know to make sense of them, or to refuse them."""

from dataclasses import dataclass
from math import prod

from nanokv.arguments import integer
from nanokv.dtypes import DTYPE_BYTES, DTYPE_NAMES
from nanokv.errors import InvalidArgument

MOST_FORM_BYTES = 32  #: of the name of an opaque form: it is stored
_NEEDED, _OPTIONAL = frozenset("LND"), frozenset("2H")


@dataclass(frozen=True, slots=True, kw_only=True)
class KVLayout:
    """The layout of the objects that one rank of an engine stores: one object per block of tokens.

    Attributes:
        layers: layers in an object.
        kv_heads: KV heads of the whole model, before they are divided among the ranks.
        head_size: elements of one head of one token.
        block_size: tokens in an object.
        dtype: a name of `nanokv.dtypes`, such as "bfloat16".
        order: the dimensions of an object, outermost first: L layers, 2 K and V, N tokens, H heads, D head_size. D is
            the last one; without 2 there are no halves (latents), without H there is one head. `paged_kv` stores
            "L2NHD" ("LNHD" with `kv_dim=None`); "2LNHD" has all K before all V, "2NLHD" is a page-first order.
        tp_rank, tp_size: of tensor parallelism: which of the heads this rank holds. With more ranks than heads, as many
            neighbouring ranks as needed hold the same head.
        first_layer: the number in the model of the first layer, for a stage of a pipeline.
        form: empty, or the name of an arrangement that `order` cannot say, such as a kernel's packed one. Bytes of a
            named form are opaque: only a reader with the same layout can use them.

    Raises:
        InvalidArgument: a value cannot be; or the heads cannot be divided among the ranks.
    """

    layers: int
    kv_heads: int
    head_size: int
    block_size: int
    dtype: str
    order: str = "L2NHD"
    tp_rank: int = 0
    tp_size: int = 1
    first_layer: int = 0
    form: str = ""

    def __post_init__(self) -> None:
        for name in ("layers", "kv_heads", "head_size", "block_size", "tp_size"):
            self._set(name, integer(name, getattr(self, name), 1, _MOST))
        self._set("tp_rank", integer("tp_rank", self.tp_rank, 0, self.tp_size - 1))
        self._set("first_layer", integer("first_layer", self.first_layer, 0, _MOST))
        if self.dtype not in DTYPE_NAMES:
            raise InvalidArgument(f"dtype must be one of {', '.join(DTYPE_NAMES)}, not {self.dtype!r}")
        _check_order(self.order)
        if not isinstance(self.form, str):
            raise InvalidArgument(f"form must be a str, not {self.form!r}")
        if len(self.form.encode("utf-8", "surrogatepass")) > MOST_FORM_BYTES or "\0" in self.form:
            raise InvalidArgument(f"form must have at most {MOST_FORM_BYTES} bytes and no NUL, not {self.form!r}")
        if self.kv_heads % self.tp_size and self.tp_size % self.kv_heads:
            raise InvalidArgument(f"{self.kv_heads} KV heads cannot be divided among {self.tp_size} ranks")
        if "H" not in self.order and len(self.heads) > 1:
            raise InvalidArgument(f"an order without H holds one head, not {len(self.heads)}: {self.order!r}")

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    def __str__(self) -> str:
        stage = f", layers from {self.first_layer} on" if self.first_layer else ""
        form = f", form {self.form!r}" if self.form else ""
        ranks = f"rank {self.tp_rank} of {self.tp_size}"
        return f"{self.order} {list(self.shape)} {self.dtype}, {ranks} of {self.kv_heads} KV heads{stage}{form}"

    @property
    def heads(self) -> range:
        """The model's KV heads that this rank holds."""
        each = max(self.kv_heads // self.tp_size, 1)
        first = self.tp_rank * self.kv_heads // self.tp_size
        return range(first, first + each)

    @property
    def halves(self) -> int:
        """2 where K and V are apart, else 1."""
        return 2 if "2" in self.order else 1

    @property
    def sizes(self) -> dict[str, int]:
        """The size of each dimension, by its letter; also of those that `order` leaves out."""
        heads = len(self.heads)
        return {"L": self.layers, "2": self.halves, "N": self.block_size, "H": heads, "D": self.head_size}

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of an object."""
        return tuple(self.sizes[letter] for letter in self.order)

    @property
    def nbytes(self) -> int:
        """Bytes of an object."""
        return prod(self.shape) * DTYPE_BYTES[DTYPE_NAMES.index(self.dtype)]


_MOST = 2**31 - 1  #: of any number in a layout


def _check_order(order: object) -> None:
    letters = frozenset(order) if isinstance(order, str) else frozenset()
    if (
        not isinstance(order, str)
        or not order
        or len(letters) != len(order)
        or not _NEEDED <= letters <= _NEEDED | _OPTIONAL
        or order[-1] != "D"
    ):
        raise InvalidArgument(f'order must be the letters L, N, and if wanted 2 and H, then D, not {order!r}: "L2NHD"')
