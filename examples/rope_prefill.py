"""A prefill kernel that rotates K, writes K and V into a decode rank's memory, and publishes them there. One launch.

The kernel allocates the objects itself, in the owner's segment; the host only writes a table in device memory, which
names their keys and owners. So the launch can be captured in a CUDA graph, and each replay publishes the objects that
the table names by then.

An object holds one block of tokens of one layer: [2, tokens, kv_heads, dim], K rotated, then V, without gaps.

    python examples/rope_prefill.py      runs in Triton's interpreter where there is no GPU
"""

import os
from collections.abc import Sequence
from typing import NamedTuple

import torch

if __name__ == "__main__" and not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # Triton reads it when it decorates a kernel, so it must be set here

import triton
import triton.language as tl

import nanokv
from nanokv.device.library import (
    NOT_LAST,
    OK,
    Q_BLOCK,
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

BLOCK = 16  #: tokens per object
TILE = 8  #: tokens per CTA
WARPS = 4  #: per CTA


# --- the kernel -------------------------------------------------------------------------------
@triton.jit
def store_rotated(
    to_ptr: tl.tensor,
    from_ptr: tl.tensor,
    cos_ptr: tl.tensor,
    sin_ptr: tl.tensor,
    position: tl.tensor,
    inside: tl.tensor,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
) -> None:
    """Rotate the rows [HEADS, DIM] of tokens by their positions. `to_ptr`, `from_ptr`: pointers to each token's row."""
    lanes = tl.arange(0, DIM // 2)[None, :]
    mask = inside[:, None]
    cos = tl.load(cos_ptr + position[:, None] * (DIM // 2) + lanes, mask=mask)
    sin = tl.load(sin_ptr + position[:, None] * (DIM // 2) + lanes, mask=mask)
    for head in range(HEADS):
        low = from_ptr[:, None] + head * DIM + lanes
        one = tl.load(low, mask=mask).to(tl.float32)
        two = tl.load(low + DIM // 2, mask=mask).to(tl.float32)
        out = to_ptr[:, None] + head * DIM + lanes
        tl.store(out, (one * cos - two * sin).to(to_ptr.dtype.element_ty), mask=mask)
        tl.store(out + DIM // 2, (two * cos + one * sin).to(to_ptr.dtype.element_ty), mask=mask)


@triton.jit
def store_copied(
    to_ptr: tl.tensor, from_ptr: tl.tensor, inside: tl.tensor, HEADS: tl.constexpr, DIM: tl.constexpr
) -> None:
    """Copy the rows [HEADS, DIM] of tokens."""
    lanes = tl.arange(0, DIM)[None, :]
    for head in range(HEADS):
        values = tl.load(from_ptr[:, None] + head * DIM + lanes, mask=inside[:, None])
        tl.store(to_ptr[:, None] + head * DIM + lanes, values, mask=inside[:, None])


@triton.jit
def rope_prefill_kernel(
    world: tl.int64,
    requests: tl.int64,
    tickets: tl.int64,
    statuses: tl.int64,
    control: tl.int64,
    q_ptr: tl.tensor,
    k_ptr: tl.tensor,
    v_ptr: tl.tensor,
    positions_ptr: tl.tensor,
    cos_ptr: tl.tensor,
    sin_ptr: tl.tensor,
    rotated_q_ptr: tl.tensor,
    Q_HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK: tl.constexpr,
    TILE: tl.constexpr,
) -> None:
    """CTA (n, part): TILE tokens of the n-th object, from token `part * TILE` on; any number of warps."""
    row: tl.constexpr = KV_HEADS * DIM
    row_bytes: tl.constexpr = row * (k_ptr.dtype.element_ty.primitive_bitwidth // 8)
    n = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1).to(tl.int64)
    request = requests + n * REQUEST_BYTES
    ticket = tickets + n * TICKET_BYTES
    tokens = tl.where(n < table64(control), table64(request + Q_BYTES) // (2 * row_bytes), 0)
    if part * TILE < tokens:
        of_object = part * TILE + tl.arange(0, TILE)
        inside = of_object < tokens
        token = table64(request + Q_BLOCK) * BLOCK + of_object
        position = tl.load(positions_ptr + token, mask=inside, other=0)
        q_row = token * (Q_HEADS * DIM)  # Q stays on this rank: it is rotated whatever becomes of the object
        store_rotated(rotated_q_ptr + q_row, q_ptr + q_row, cos_ptr, sin_ptr, position, inside, Q_HEADS, DIM)

        status, payload = begin_put_part(world, request, ticket, table64(control + WORD_BYTES))
        if status == OK:
            # a payload begins at a page: the hint lets Triton make the stores as wide as possible
            k_to_ptr = tl.multiple_of(tl.cast(payload, k_ptr.dtype) + of_object * row, 16)
            v_to_ptr = tl.multiple_of(k_to_ptr + tokens * row, 16)
            store_rotated(k_to_ptr, k_ptr + token * row, cos_ptr, sin_ptr, position, inside, KV_HEADS, DIM)
            store_copied(v_to_ptr, v_ptr + token * row, inside, KV_HEADS, DIM)
            count = tl.minimum(tokens - part * TILE, TILE) * row_bytes
            for plane in range(2):  # for the object's checksum; does nothing in a world without checksums
                first = (plane * tokens + part * TILE) * row_bytes
                sum_put_part(world, ticket, payload + first, count, first // WORD_BYTES)
        status = finish_put_part(world, request, ticket, (tokens + TILE - 1) // TILE)
        if status != NOT_LAST:
            store64(statuses + n * WORD_BYTES, status, "relaxed")


# --- the host ---------------------------------------------------------------------------------
class Rotation(NamedTuple):
    """Cosines and sines of every position: float32 [positions, dim / 2]."""

    cos: torch.Tensor
    sin: torch.Tensor


def rotation(positions: int, dim: int, device: torch.device, base: float = 10000.0) -> Rotation:
    """The rotation by the usual frequencies, base^(-2i / dim), for `positions` positions."""
    angles = torch.outer(torch.arange(positions), base ** (-torch.arange(0, dim, 2) / dim)).float()
    return Rotation(angles.cos().to(device), angles.sin().to(device))


def block_requests(keys: Sequence[tuple[int, int]], k: torch.Tensor, owner: int) -> list[Request]:
    """One request per block of BLOCK tokens of `k` [tokens, kv_heads, dim]; the last block may be smaller."""
    requests = []
    for block, key in enumerate(keys):
        tokens = min(BLOCK, len(k) - block * BLOCK)
        nbytes, what = describe(k.new_empty(2, tokens, *k.shape[1:]))
        requests.append(Request(key, 0, nbytes, owner, what, block=block))
    return requests


class Prefill:
    """The launch, and the tables that it reads. `batch.fill` names the objects; `launch` may be captured in a graph.

    Args:
        world: the address of the world table: `cache.world_table`.
        capacity: the most objects per launch.
        warps: per CTA.
    """

    def __init__(self, world: int, capacity: int, device: torch.device, warps: int = WARPS) -> None:
        self._world = world
        self._warps = warps
        self.batch = Batch(world, capacity, device)

    def launch(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, positions: torch.Tensor, by: Rotation
    ) -> torch.Tensor:
        """Rotate, store, publish; returns the rotated Q. `batch.answers()` has the statuses of the objects.

        Args:
            q: [tokens, q_heads, dim]. k, v: [tokens, kv_heads, dim]; all contiguous, of one dtype of 2 or 4 bytes.
                `dim` is a power of two, at least 16.
            positions: int64 [tokens], each below the number of positions of `by`.
            by: made by `rotation`.

        Raises:
            ValueError: a tensor is not contiguous, or not of the shape and dtype of the others.
        """
        _check(q, k, v, positions)
        rotated_q = torch.empty_like(q)
        batch = self.batch
        words = (each.data_ptr() for each in (batch.requests, batch.tickets, batch.statuses, batch.control))
        rope_prefill_kernel[(batch.capacity, BLOCK // TILE)](
            self._world,
            *words,
            *(q, k, v, positions, by.cos, by.sin, rotated_q),
            Q_HEADS=q.shape[1],
            KV_HEADS=k.shape[1],
            DIM=k.shape[2],
            BLOCK=BLOCK,
            TILE=TILE,
            num_warps=self._warps,
        )
        return rotated_q


def _check(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, positions: torch.Tensor) -> None:
    tokens, dim = len(k), k.shape[-1]
    wanted = {"q": (q, (tokens, q.shape[1], dim), k.dtype), "v": (v, k.shape, k.dtype)}
    wanted |= {"k": (k, k.shape, k.dtype), "positions": (positions, (tokens,), torch.int64)}
    for name, (tensor, shape, dtype) in wanted.items():
        if tensor.shape != shape or tensor.dtype != dtype or not tensor.is_contiguous():
            what = f"{tensor.dtype}{tuple(tensor.shape)} with strides {tensor.stride()}"
            raise ValueError(f"{name} must be {dtype}{tuple(shape)}, contiguous, not {what}")
    if dim < 16 or dim & (dim - 1):
        raise ValueError(f"dim must be a power of two, at least 16, not {dim}")


def rotated(x: torch.Tensor, positions: torch.Tensor, by: Rotation) -> torch.Tensor:
    """The reference: `x` [tokens, heads, dim] rotated, in plain torch."""
    one, two = x.float().chunk(2, dim=-1)
    cos, sin = by.cos[positions][:, None], by.sin[positions][:, None]
    return torch.cat([one * cos - two * sin, two * cos + one * sin], dim=-1).to(x.dtype)


def main() -> None:
    """Rank 0 prefills 40 tokens into rank 1, which reads them. Rank 0 then does it again, and is told DUPLICATE."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    tokens, q_heads, kv_heads, dim = 40, 4, 2, 32
    prefiller, decoder = nanokv.local_world(2, 1 << 20, page_bytes=8192, device=device, alloc="device")
    with prefiller, decoder:
        for dtype, within in ((torch.float32, 1e-6), (torch.bfloat16, 2**-7)):  # bfloat16: one unit in the last place
            dice = torch.Generator().manual_seed(7)
            q, k, v = (
                torch.randn(tokens, heads, dim, generator=dice).to(dtype).to(device)
                for heads in (q_heads, kv_heads, kv_heads)
            )
            positions = torch.arange(100, 100 + tokens, device=device)
            by = rotation(256, dim, device)
            keys = [f"{dtype}:layer:0:block:{block}" for block in range(-(-tokens // BLOCK))]

            prefill = Prefill(prefiller.world_table, 8, device)
            prefill.batch.fill(block_requests([prefiller.digest(key) for key in keys], k, decoder.rank))
            rotated_q = prefill.launch(q, k, v, positions, by)
            assert prefill.batch.answers() == [Status.OK] * len(keys)
            torch.testing.assert_close(rotated_q, rotated(q, positions, by), rtol=within, atol=within)

            want_k = rotated(k, positions, by)
            for block, key in enumerate(keys):
                span = slice(block * BLOCK, (block + 1) * BLOCK)
                stored = decoder.get(key)  # the dtype and shape come with the object
                torch.testing.assert_close(stored[0], want_k[span], rtol=within, atol=within)
                assert torch.equal(stored[1], v[span])
                print(f"{key}: {tuple(stored.shape)} on rank {decoder.get_location(key).owner_rank}")

            prefill.launch(q, k, v, positions, by)
            assert prefill.batch.answers() == [Status.DUPLICATE] * len(keys)
            print(f"{dtype}: K within {within} of torch, V equal; the same again: DUPLICATE")


if __name__ == "__main__":
    main()
