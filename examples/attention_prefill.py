"""Attention over a prompt by a kernel of four warps, which first publishes its K and V by itself. One launch.

Each CTA has one block of tokens and one KV head. It stores its K and V into the decode rank's memory; the last CTA of a
block publishes it, and the decode rank can read it while this one still attends. Causal, grouped heads.

An object holds one block of tokens of one layer: [2, kv_heads, tokens, dim], K then V, so that each CTA's part of K and
of V is one run of bytes.

    python examples/attention_prefill.py      runs in Triton's interpreter where there is no GPU
"""

import os
from collections.abc import Sequence
from typing import Any

import torch

if __name__ == "__main__" and not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # Triton reads it when it decorates a kernel, so it must be set here

import triton
import triton.language as tl
from triton.runtime.interpreter import InterpretedFunction

import nanokv
from nanokv.device.library import (
    NOT_LAST,
    OK,
    Q_BYTES,
    REQUEST_BYTES,
    TICKET_BYTES,
    WORD_BYTES,
    begin_put_part,
    finish_put_part,
    store64,
    sum_put_part,
    table64,
)
from nanokv.device.machines.batch import Batch
from nanokv.device.machines.records import Request
from nanokv.device.protocol.status import Status
from nanokv.transfer.descriptors import describe

BLOCK = 32  #: tokens per object
WARPS = 4  #: per CTA


# --- the kernel -------------------------------------------------------------------------------
@triton.jit
def rows_of(
    of_ptr: tl.tensor,
    first: tl.int64,
    end: tl.int64,
    head: tl.int64,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK: tl.constexpr,
) -> Any:
    """The rows of one head from token `first` to before `end`, of a tensor [tokens, HEADS, DIM]: [BLOCK, DIM]."""
    token = first + tl.arange(0, BLOCK)[:, None]
    lanes = (token * HEADS + head) * DIM + tl.arange(0, DIM)[None, :]
    return tl.load(of_ptr + lanes, mask=token < end, other=0)


@triton.jit
def publish(
    world: tl.int64,
    request: tl.int64,
    ticket: tl.int64,
    now: tl.int64,
    k_ptr: tl.tensor,
    v_ptr: tl.tensor,
    first: tl.int64,
    tokens: tl.int64,
    head: tl.int64,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK: tl.constexpr,
) -> Any:
    """Store one head's K and V of `tokens` tokens from `first` on. NOT_LAST, or the status of the whole put."""
    kind: tl.constexpr = k_ptr.dtype.element_ty
    part_bytes = tokens * (DIM * (kind.primitive_bitwidth // 8))
    status, payload = begin_put_part(world, request, ticket, now)
    if status == OK:
        inside = tl.arange(0, BLOCK)[:, None] < tokens
        lanes = tl.arange(0, BLOCK)[:, None] * DIM + tl.arange(0, DIM)[None, :]
        for plane in tl.static_range(2):
            rows = rows_of(v_ptr if plane else k_ptr, first, first + tokens, head, KV_HEADS, DIM, BLOCK)
            place = (plane * KV_HEADS + head) * part_bytes
            # a row is a multiple of 16 bytes: the hint lets Triton make the stores as wide as possible
            to_ptr = tl.multiple_of(tl.cast(payload + place, tl.pointer_type(kind)), 16)
            tl.store(to_ptr + lanes, rows, mask=inside)
            # for the object's checksum; does nothing in a world without checksums
            sum_put_part(world, ticket, payload + place, part_bytes, place // WORD_BYTES)
    return finish_put_part(world, request, ticket, KV_HEADS)


@triton.jit
def attention(
    q_ptr: tl.tensor,
    k_ptr: tl.tensor,
    v_ptr: tl.tensor,
    out_ptr: tl.tensor,
    scale: tl.float32,
    first: tl.int64,
    end: tl.int64,
    q_head: tl.int64,
    kv_head: tl.int64,
    Q_HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK: tl.constexpr,
    WIDE: tl.constexpr,
) -> None:
    """Attend from one block of one query head to all tokens up to its own: the online softmax, block by block.

    `WIDE`: multiply as float32, because Triton's interpreter takes the bits of bfloat16 for integers in `tl.dot`.
    """
    kind: tl.constexpr = tl.float32 if WIDE else q_ptr.dtype.element_ty
    q = rows_of(q_ptr, first, end, q_head, Q_HEADS, DIM, BLOCK).to(kind)
    mine = first + tl.arange(0, BLOCK)[:, None]
    best = tl.full([BLOCK], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    values = tl.zeros([BLOCK, DIM], tl.float32)
    start = first * 0
    while start <= first:
        k = rows_of(k_ptr, start, end, kv_head, KV_HEADS, DIM, BLOCK).to(kind)
        v = rows_of(v_ptr, start, end, kv_head, KV_HEADS, DIM, BLOCK).to(kind)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        scores = tl.where(start + tl.arange(0, BLOCK)[None, :] <= mine, scores, float("-inf"))
        better = tl.maximum(best, tl.max(scores, 1))
        weights = tl.exp(scores - better[:, None])
        old = tl.exp(best - better)
        total = total * old + tl.sum(weights, 1)
        values = values * old[:, None] + tl.dot(weights.to(kind), v, input_precision="ieee")
        best = better
        start += BLOCK
    out_lanes = (mine * Q_HEADS + q_head) * DIM + tl.arange(0, DIM)[None, :]
    tl.store(out_ptr + out_lanes, (values / total[:, None]).to(out_ptr.dtype.element_ty), mask=mine < end)


@triton.jit
def attention_prefill_kernel(
    world: tl.int64,
    requests: tl.int64,
    tickets: tl.int64,
    statuses: tl.int64,
    control: tl.int64,
    q_ptr: tl.tensor,
    k_ptr: tl.tensor,
    v_ptr: tl.tensor,
    out_ptr: tl.tensor,
    scale: tl.float32,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK: tl.constexpr,
    WIDE: tl.constexpr,
) -> None:
    """CTA (n, KV head): the n-th block of the prompt, which the n-th request names; any number of warps."""
    n = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1).to(tl.int64)
    request = requests + n * REQUEST_BYTES
    token_bytes: tl.constexpr = 2 * KV_HEADS * DIM * (k_ptr.dtype.element_ty.primitive_bitwidth // 8)
    if n < table64(control):
        first = n * BLOCK
        tokens = table64(request + Q_BYTES) // token_bytes
        now = table64(control + WORD_BYTES)
        ticket = tickets + n * TICKET_BYTES
        status = publish(world, request, ticket, now, k_ptr, v_ptr, first, tokens, head, KV_HEADS, DIM, BLOCK)
        if status != NOT_LAST:
            store64(statuses + n * WORD_BYTES, status, "relaxed")
        for one in range(GROUP):  # whatever has become of the object
            of = (scale, first, first + tokens, head * GROUP + one, head)
            attention(q_ptr, k_ptr, v_ptr, out_ptr, *of, KV_HEADS * GROUP, KV_HEADS, DIM, BLOCK, WIDE)


INTERPRETED = isinstance(attention_prefill_kernel, InterpretedFunction)


# --- the host ---------------------------------------------------------------------------------
def block_requests(keys: Sequence[tuple[int, int]], k: torch.Tensor, owner: int) -> list[Request]:
    """One request per block of BLOCK tokens of `k` [tokens, kv_heads, dim]; the last block may be smaller."""
    requests = []
    for block, key in enumerate(keys):
        tokens = min(BLOCK, len(k) - block * BLOCK)
        nbytes, what = describe(k.new_empty(2, k.shape[1], tokens, k.shape[2]))
        requests.append(Request(key, 0, nbytes, owner, what, block=block))
    return requests


class AttentionPrefill:
    """The launch, and the tables that it reads. `batch.fill` names the objects, in the order of the prompt's blocks.

    Args:
        world: the address of the world table: `cache.world_table`.
        capacity: the most blocks per launch.
        warps: per CTA.
    """

    def __init__(self, world: int, capacity: int, device: torch.device, warps: int = WARPS) -> None:
        self._world = world
        self._warps = warps
        self.batch = Batch(world, capacity, device)

    def launch(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Publish K and V, and attend; returns [tokens, q_heads, dim]. `batch.answers()` has a status per block.

        Args:
            q: [tokens, q_heads, dim]. k, v: [tokens, kv_heads, dim]; all contiguous, of one dtype of 2 or 4 bytes.
                q_heads is a multiple of kv_heads; dim is a power of two, at least 16.

        Raises:
            ValueError: a tensor is not contiguous, or not of the shape and dtype of the others.
        """
        _check(q, k, v)
        out = torch.empty_like(q)
        batch, (kv_heads, dim) = self.batch, k.shape[1:]
        words = (each.data_ptr() for each in (batch.requests, batch.tickets, batch.statuses, batch.control))
        attention_prefill_kernel[(batch.capacity, kv_heads)](
            self._world,
            *words,
            *(q, k, v, out, dim**-0.5),
            KV_HEADS=kv_heads,
            GROUP=q.shape[1] // kv_heads,
            DIM=dim,
            BLOCK=BLOCK,
            WIDE=INTERPRETED,
            num_warps=self._warps,
        )
        return out


def _check(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
    (tokens, kv_heads, dim), q_heads = k.shape, q.shape[1]
    for name, tensor, heads in (("q", q, q_heads), ("k", k, kv_heads), ("v", v, kv_heads)):
        if tensor.shape != (tokens, heads, dim) or tensor.dtype != k.dtype or not tensor.is_contiguous():
            what = f"{tensor.dtype}{tuple(tensor.shape)} with strides {tensor.stride()}"
            raise ValueError(f"{name} must be {k.dtype}{(tokens, heads, dim)}, contiguous, not {what}")
    if q_heads % kv_heads:
        raise ValueError(f"q_heads must be a multiple of {kv_heads}, not {q_heads}")
    if dim < 16 or dim & (dim - 1):
        raise ValueError(f"dim must be a power of two, at least 16, not {dim}")


def reference(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Causal attention in plain torch: [tokens, q_heads, dim], in float32."""
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    q, k, v = (x.float().transpose(0, 1) for x in (q, k, v))
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(0, 1)


def main() -> None:
    """Rank 0 prefills a prompt of 70 tokens; rank 1 has its K and V, block by block."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    tokens, q_heads, kv_heads, dim = 70, 4, 2, 32
    prefiller, decoder = nanokv.local_world(2, 1 << 20, page_bytes=8192, device=device, alloc="device")
    with prefiller, decoder:
        for dtype, within in ((torch.float32, 1e-5), (torch.bfloat16, 2e-2)):  # bfloat16: weights and results rounded
            dice = torch.Generator().manual_seed(7)
            q, k, v = (
                torch.randn(tokens, heads, dim, generator=dice).to(dtype).to(device)
                for heads in (q_heads, kv_heads, kv_heads)
            )
            keys = [f"{dtype}:layer:0:block:{block}" for block in range(-(-tokens // BLOCK))]
            prefill = AttentionPrefill(prefiller.world_table, 4, device)
            prefill.batch.fill(block_requests([prefiller.digest(key) for key in keys], k, decoder.rank))
            out = prefill.launch(q, k, v)
            assert prefill.batch.answers() == [Status.OK] * len(keys)
            torch.testing.assert_close(out.float(), reference(q, k, v), rtol=within, atol=within)
            for block, key in enumerate(keys):
                span = slice(block * BLOCK, (block + 1) * BLOCK)
                stored = decoder.get(key)  # the dtype and shape come with the object
                assert torch.equal(stored, torch.stack([k[span], v[span]]).transpose(1, 2))
                print(f"{key}: {tuple(stored.shape)} on rank {decoder.get_location(key).owner_rank}")
            print(f"{dtype}: attention within {within} of torch, K and V equal")


if __name__ == "__main__":
    main()
