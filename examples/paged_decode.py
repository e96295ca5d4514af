"""Decode attention that reads K and V in place from objects of the cache: pinned, or without a pin and validated.

One query token per sequence, grouped heads, sequences of different lengths. An object holds one block of tokens, as
rope_prefill.py writes it: [2, tokens, kv_heads, dim], K then V; the last block of a sequence may be smaller.

    paged_decode_kernel       the host pins the objects and passes their addresses; nothing can happen to them
    validated_decode_kernel   finds each object by its key, and validates after it has read that it was there all along

    python examples/paged_decode.py      runs in Triton's interpreter where there is no GPU
"""

import os
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import torch

if __name__ == "__main__" and not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # Triton reads it when it decorates a kernel, so it must be set here

import triton
import triton.language as tl
from triton.runtime.interpreter import InterpretedFunction

import nanokv
from nanokv.device.library import (
    OK,
    Q_KEY_CHECK,
    Q_KEY_HASH,
    REQUEST_BYTES,
    SIZE,
    TORN,
    WORD_BYTES,
    lookup,
    segment,
    store64,
    table64,
    validate,
    word,
)
from nanokv.device.machines.batch import Batch
from nanokv.device.machines.records import Request
from nanokv.device.protocol.status import Status

BLOCK = 16  #: tokens per object; at least 16, the smallest side that `tl.dot` takes
ROWS = tl.constexpr(16)  # query heads per tile: those of one KV head, padded with zeros
TRIES = tl.constexpr(4)  # to read one object without a pin


# --- what both kernels do with a block ----------------------------------------------------------
@triton.jit
def load_block(
    address: tl.int64,
    tokens: tl.int64,
    head: tl.int64,
    kind: tl.constexpr,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK: tl.constexpr,
) -> Any:
    """K and V of one head of an object: [BLOCK, DIM] each, zeros behind the last token."""
    at = tl.arange(0, BLOCK)[:, None]
    base = tl.multiple_of(tl.cast(address, tl.pointer_type(kind)) + head * DIM, 16)
    k_ptr = base + at * (KV_HEADS * DIM) + tl.arange(0, DIM)[None, :]
    # .cg: the first-level cache of an SM may hold older bytes of the page
    k = tl.load(k_ptr, mask=at < tokens, other=0, cache_modifier=".cg")
    v = tl.load(k_ptr + tokens * (KV_HEADS * DIM), mask=at < tokens, other=0, cache_modifier=".cg")
    return k, v


@triton.jit
def attend(
    best: tl.tensor,
    total: tl.tensor,
    values: tl.tensor,
    query: tl.tensor,
    k: tl.tensor,
    v: tl.tensor,
    tokens: tl.int64,
    scale: tl.float32,
    BLOCK: tl.constexpr,
    WIDE: tl.constexpr,
) -> Any:
    """One step of the online softmax: the largest score, the sum of weights and the weighted values so far.

    `WIDE`: multiply as float32, because Triton's interpreter takes the bits of bfloat16 for integers in `tl.dot`.
    """
    if WIDE:
        query, k, v = query.to(tl.float32), k.to(tl.float32), v.to(tl.float32)
    scores = tl.dot(query, tl.trans(k), input_precision="ieee") * scale
    scores = tl.where(tl.arange(0, BLOCK)[None, :] < tokens, scores, float("-inf"))
    better = tl.maximum(best, tl.max(scores, 1))
    old = tl.exp(best - better)
    weights = tl.exp(scores - better[:, None])
    added = tl.dot(weights.to(v.dtype), v, input_precision="ieee")
    return better, total * old + tl.sum(weights, 1), values * old[:, None] + added


@triton.jit
def head_lanes(
    sequence: tl.int64, head: tl.int64, KV_HEADS: tl.constexpr, GROUP: tl.constexpr, DIM: tl.constexpr
) -> Any:
    """The query heads of one KV head: their elements in [sequences, q_heads, dim], and their rows of the tile."""
    row = tl.arange(0, ROWS)[:, None]
    at = ((sequence * KV_HEADS + head) * GROUP + row) * DIM + tl.arange(0, DIM)[None, :]
    return at, row < GROUP


# --- pinned -----------------------------------------------------------------------------------
@triton.jit
def paged_decode_kernel(
    q_ptr: tl.tensor,
    pages_ptr: tl.tensor,
    lengths_ptr: tl.tensor,
    out_ptr: tl.tensor,
    scale: tl.float32,
    most_blocks: tl.int64,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK: tl.constexpr,
    WIDE: tl.constexpr,
) -> None:
    """CTA (sequence, KV head). `pages_ptr`: int64 [sequences, most_blocks], the addresses of pinned objects."""
    sequence = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1).to(tl.int64)
    length = tl.load(lengths_ptr + sequence)
    at, mask = head_lanes(sequence, head, KV_HEADS, GROUP, DIM)
    query = tl.load(q_ptr + at, mask=mask, other=0)
    best = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    values = tl.zeros([ROWS, DIM], tl.float32)
    first = word(0)
    while first < length:
        address = tl.load(pages_ptr + sequence * most_blocks + first // BLOCK)
        tokens = tl.minimum(length - first, BLOCK)
        k, v = load_block(address, tokens, head, q_ptr.dtype.element_ty, KV_HEADS, DIM, BLOCK)
        best, total, values = attend(best, total, values, query, k, v, tokens, scale, BLOCK, WIDE)
        first += BLOCK
    values = values / tl.where(total > 0, total, 1)[:, None]
    tl.store(out_ptr + at, values.to(out_ptr.dtype.element_ty), mask=mask)


# --- without a pin ----------------------------------------------------------------------------
@triton.jit
def read_block(
    world: tl.int64,
    request: tl.int64,
    tokens: tl.int64,
    head: tl.int64,
    kind: tl.constexpr,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK: tl.constexpr,
) -> Any:
    """Find an object, load one head of it, and validate; try again if it was torn. Returns (status, k, v).

    After OK k and v are the object's. After MISS, NOT_READY, TORN, SIZE or CORRUPT they mean nothing.
    """
    token_bytes: tl.constexpr = 2 * KV_HEADS * DIM * (kind.primitive_bitwidth // 8)
    k = tl.zeros([BLOCK, DIM], kind)
    v = tl.zeros([BLOCK, DIM], kind)
    status = word(TORN)
    tries = word(0)
    while (status == TORN) & (tries < TRIES):
        status, owner, slot, epoch, payload, nbytes = lookup(
            world, table64(request + Q_KEY_HASH), table64(request + Q_KEY_CHECK)
        )
        if status == OK:
            fits = nbytes == tokens * token_bytes
            if fits:
                k, v = load_block(segment(world, owner) + payload, tokens, head, kind, KV_HEADS, DIM, BLOCK)
            status = validate(world, owner, slot, epoch)  # the answers of `lookup`, and k and v, count only now
            if (status == OK) & (not fits):
                status = word(SIZE)
        tries += 1
    return status, k, v


@triton.jit
def validated_decode_kernel(
    world: tl.int64,
    requests: tl.int64,
    statuses: tl.int64,
    q_ptr: tl.tensor,
    lengths_ptr: tl.tensor,
    out_ptr: tl.tensor,
    scale: tl.float32,
    most_blocks: tl.int64,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK: tl.constexpr,
    WIDE: tl.constexpr,
) -> None:
    """CTA (sequence, KV head), one warp. `statuses`: int64 [sequences, KV heads]; writes to `out_ptr` only after OK."""
    sequence = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1).to(tl.int64)
    length = tl.load(lengths_ptr + sequence)
    at, mask = head_lanes(sequence, head, KV_HEADS, GROUP, DIM)
    query = tl.load(q_ptr + at, mask=mask, other=0)
    best = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    values = tl.zeros([ROWS, DIM], tl.float32)
    status = word(OK)
    first = word(0)
    while (first < length) & (status == OK):
        request = requests + (sequence * most_blocks + first // BLOCK) * REQUEST_BYTES
        tokens = tl.minimum(length - first, BLOCK)
        status, k, v = read_block(world, request, tokens, head, q_ptr.dtype.element_ty, KV_HEADS, DIM, BLOCK)
        if status == OK:
            best, total, values = attend(best, total, values, query, k, v, tokens, scale, BLOCK, WIDE)
        first += BLOCK
    if status == OK:
        values = values / tl.where(total > 0, total, 1)[:, None]
        tl.store(out_ptr + at, values.to(out_ptr.dtype.element_ty), mask=mask)
    store64(statuses + (sequence * KV_HEADS + head) * WORD_BYTES, status, "relaxed")


INTERPRETED = isinstance(validated_decode_kernel, InterpretedFunction)


# --- the host ---------------------------------------------------------------------------------
def pin_pages(
    cache: nanokv.NanoKVCache, pins: ExitStack, keys: Sequence[str], length: int, like: torch.Tensor
) -> list[int]:
    """Pin the blocks of one sequence until `pins` ends; returns the address of each.

    Args:
        length: tokens. like: of the dtype, and of the last two dimensions, that the objects must have.

    Raises:
        ValueError: an object has another shape or dtype than the kernel assumes.
        nanokv.errors.KeyNotFound: an object is missing.
    """
    if len(keys) != -(-length // BLOCK):
        raise ValueError(f"{length} tokens are {-(-length // BLOCK)} blocks of {BLOCK}, not {len(keys)}")
    addresses = []
    for at, key in enumerate(keys):
        tensor = pins.enter_context(cache.pin(key))
        wanted = (2, min(length - at * BLOCK, BLOCK), *like.shape[-2:])
        if tensor.shape != wanted or tensor.dtype != like.dtype:
            raise ValueError(f"{key!r} is {tensor.dtype}{tuple(tensor.shape)}, not {like.dtype}{wanted}")
        addresses.append(tensor.data_ptr())
    return addresses


def decode_pinned(
    cache: nanokv.NanoKVCache, q: torch.Tensor, keys: Sequence[Sequence[str]], lengths: Sequence[int], kv_heads: int
) -> torch.Tensor:
    """Attention of `q` [sequences, q_heads, dim] over the objects of each sequence, which stay pinned meanwhile.

    Args:
        keys: of the blocks of each sequence. lengths: tokens of each.

    Raises:
        ValueError, nanokv.errors.KeyNotFound: see `pin_pages`.
    """
    most_blocks = max(map(len, keys))
    like = q.new_empty(kv_heads, q.shape[2])
    with ExitStack() as pins:
        rows = [pin_pages(cache, pins, of_one, n, like) for of_one, n in zip(keys, lengths, strict=True)]
        pages = torch.tensor([row + [0] * (most_blocks - len(row)) for row in rows], dtype=torch.int64).to(q.device)
        out = torch.empty_like(q)
        paged_decode_kernel[(len(q), kv_heads)](
            *(q, pages, torch.tensor(lengths).to(q.device), out, q.shape[2] ** -0.5, most_blocks),
            KV_HEADS=kv_heads,
            GROUP=q.shape[1] // kv_heads,
            DIM=q.shape[2],
            BLOCK=BLOCK,
            WIDE=INTERPRETED,
            num_warps=4,
        )
        if q.is_cuda:
            torch.cuda.current_stream(q.device).synchronize()  # the pins must not end before the kernel does
    return out


class ValidatedDecode:
    """The same without pins. `fill` names the objects; `launch` may be captured in a graph, and leaves `statuses`.

    Args:
        world: the address of the world table: `cache.world_table`.
        most_blocks: the most blocks per sequence.
    """

    def __init__(self, world: int, sequences: int, most_blocks: int, kv_heads: int, device: torch.device) -> None:
        self._world, self._most_blocks = world, most_blocks
        self._batch = Batch(world, sequences * most_blocks, device)
        self.statuses = torch.full((sequences, kv_heads), -1, dtype=torch.int64, device=device)

    def fill(self, digests: Sequence[Sequence[tuple[int, int]]]) -> None:
        """Name the blocks of each sequence, by the digests of their keys."""
        padded = [[*of_one, *[(0, 0)] * (self._most_blocks - len(of_one))] for of_one in digests]
        self._batch.fill([Request(key, 0, 0) for of_one in padded for key in of_one])

    def launch(self, q: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """Attention of `q` [sequences, q_heads, dim]. The rows of a sequence count only if all its statuses are OK."""
        out = torch.zeros_like(q)
        kv_heads = self.statuses.shape[1]
        validated_decode_kernel[(len(q), kv_heads)](
            *(self._world, self._batch.requests.data_ptr(), self.statuses.data_ptr()),
            *(q, lengths, out, q.shape[2] ** -0.5, self._most_blocks),
            KV_HEADS=kv_heads,
            GROUP=q.shape[1] // kv_heads,
            DIM=q.shape[2],
            BLOCK=BLOCK,
            WIDE=INTERPRETED,
            num_warps=1,
        )
        return out


def reference(q: torch.Tensor, kv: torch.Tensor) -> torch.Tensor:
    """One sequence in plain torch: `q` [q_heads, dim], `kv` [2, tokens, kv_heads, dim]; float32 [q_heads, dim]."""
    k, v = kv.float().permute(0, 2, 1, 3).repeat_interleave(len(q) // kv.shape[2], dim=1)
    return torch.nn.functional.scaled_dot_product_attention(q.float()[:, None], k, v)[:, 0]


def main() -> None:
    """Rank 0 stores the blocks of three sequences in rank 1, which attends to them in place in both ways."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    lengths, q_heads, kv_heads, dim = (37, 5, 16), 4, 2, 32
    prefiller, decoder = nanokv.local_world(2, 1 << 20, page_bytes=8192, device=device, alloc="device")
    with prefiller, decoder:
        for dtype, within in ((torch.float32, 1e-5), (torch.bfloat16, 2e-2)):  # bfloat16: weights and results rounded
            dice = torch.Generator().manual_seed(7)
            q = torch.randn(len(lengths), q_heads, dim, generator=dice).to(dtype).to(device)
            contexts = [torch.randn(2, n, kv_heads, dim, generator=dice).to(dtype).to(device) for n in lengths]
            keys: list[list[str]] = []
            for n, kv in enumerate(contexts):
                blocks = [kv[:, at : at + BLOCK].contiguous() for at in range(0, kv.shape[1], BLOCK)]
                keys.append([f"{dtype}:sequence:{n}:block:{at}" for at in range(len(blocks))])
                for key, block in zip(keys[-1], blocks, strict=True):
                    prefiller.put(key, block, preferred_segment=decoder.rank)

            want = torch.stack([reference(one, kv) for one, kv in zip(q, contexts, strict=True)])
            pinned = decode_pinned(decoder, q, keys, lengths, kv_heads)
            torch.testing.assert_close(pinned.float(), want, rtol=within, atol=within)
            print(f"{dtype}: {len(lengths)} sequences in place, pinned: within {within} of torch")

            tokens = torch.tensor(lengths, device=device)
            validated = ValidatedDecode(decoder.world_table, len(lengths), max(map(len, keys)), kv_heads, device)
            validated.fill([[decoder.digest(key) for key in of_one] for of_one in keys])
            torch.testing.assert_close(validated.launch(q, tokens), pinned, rtol=within, atol=within)
            assert (validated.statuses == Status.OK).all()

            decoder.remove(keys[0][1])
            again = validated.launch(q, tokens)
            assert (validated.statuses.cpu() == torch.tensor([[Status.MISS], [Status.OK], [Status.OK]])).all()
            torch.testing.assert_close(again[1:], pinned[1:], rtol=within, atol=within)
            print(f"{dtype}: without a pin: the same; of a sequence that lost a block: MISS, the others as before")


if __name__ == "__main__":
    main()
