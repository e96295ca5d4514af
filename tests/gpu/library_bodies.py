"""Tests of the device library by the kernels of the two examples; see `bodies`.

On a CPU the kernels are interpreted and the caches are native; both work on the same segments.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from examples import attention_prefill, paged_decode
from examples.attention_prefill import AttentionPrefill
from examples.paged_decode import ValidatedDecode, decode_pinned, reference
from examples.rope_prefill import BLOCK, Prefill, block_requests, rotated, rotation
from nanokv.cache.cache import NanoKVCache
from nanokv.cache.virtual_world import local_world
from nanokv.device import library
from nanokv.device.machines.records import Request
from nanokv.device.protocol.status import Status
from nanokv.errors import KeyNotFound, ObjectPinned
from nanokv.fsck import check_cache
from tests.gpu.bodies import WARPS

PAGE = 4096
Q_HEADS, KV_HEADS, DIM = 4, 2, 32
PAGES_OF_BLOCK = 2 * BLOCK * KV_HEADS * DIM * 4 // PAGE  # pages of a block, of float32
OK, MISS, DUPLICATE, FULL = Status.OK, Status.MISS, Status.DUPLICATE, Status.FULL
WITHIN = {torch.float32: 1e-5, torch.bfloat16: 2e-2}


@contextmanager
def caches(device: torch.device, pages: int = 64, **options: Any) -> Iterator[list[NanoKVCache]]:
    """A world of two ranks that must be sound at the end. A launch may be interpreted, which takes minutes."""
    usual: dict[str, Any] = {"page_bytes": PAGE, "alloc": "device", "evict": False, "write_timeout": 600.0}
    made = local_world(2, pages * PAGE, device=device, **(usual | options))
    try:
        yield made
        for cache in made:
            cache.flush()
        report = check_cache(made)
        assert report.clean, [str(finding) for finding in report.findings]
    finally:
        for cache in made:
            cache.close()


def not_full(put: Callable[[], list[int]]) -> list[int]:
    """The answer of a put where there is room: it may be FULL while the owner's host joins (docs/design.md)."""
    for _ in range(100):
        if (answer := put()) != [FULL]:
            break
    return answer


class Projections:
    """Q, K and V of some tokens, and torch's results for them."""

    def __init__(self, tokens: int, dtype: torch.dtype, device: torch.device, seed: int = 1) -> None:
        dice = torch.Generator().manual_seed(seed)
        self.q, self.k, self.v = (
            torch.randn(tokens, heads, DIM, generator=dice).to(dtype).to(device)
            for heads in (Q_HEADS, KV_HEADS, KV_HEADS)
        )
        self.positions = torch.arange(tokens, device=device).flip(0) * 3
        self.by = rotation(3 * tokens, DIM, device)
        self.within = WITHIN[dtype]

    def put(self, prefill: Prefill, requests: list[Request]) -> list[int]:
        """The statuses of one launch; Q must be right whether or not the objects are stored."""
        prefill.batch.fill(requests)
        out = prefill.launch(self.q, self.k, self.v, self.positions, self.by)
        want = rotated(self.q, self.positions, self.by)
        for block in {request.block for request in requests}:
            span = slice(block * BLOCK, (block + 1) * BLOCK)
            torch.testing.assert_close(out[span], want[span], rtol=self.within, atol=self.within)
        return prefill.batch.answers()

    def check(self, stored: torch.Tensor, block: int) -> None:
        """The object of a block: K rotated, V as it was."""
        span = slice(block * BLOCK, (block + 1) * BLOCK)
        want = rotated(self.k, self.positions, self.by)[span]
        assert stored.shape == (2, *want.shape) and stored.dtype == want.dtype
        torch.testing.assert_close(stored[0], want, rtol=self.within, atol=self.within)
        assert torch.equal(stored[1], self.v[span])


def digests(cache: NanoKVCache, keys: list[str]) -> list[Any]:
    """The digests of keys."""
    return [cache.digest(key) for key in keys]


def prefill_kernels_publish(device: torch.device) -> None:
    """The kernel stores the values that torch computes, with checksums (which the reader verifies) and without."""
    for checksum, dtype, tokens, warps in (
        (False, torch.float32, 2 * BLOCK + 5, 4),
        (True, torch.bfloat16, BLOCK + 1, 4),
        (True, torch.float32, BLOCK + 1, 1),
    ):
        with caches(device, checksum=checksum) as (here, there):
            of = Projections(tokens, dtype, device)
            keys = [f"block:{block}" for block in range(-(-tokens // BLOCK))]
            prefill = Prefill(here.world_table, 5, device, warps)
            assert of.put(prefill, block_requests(digests(here, keys), of.k, there.rank)) == [OK] * len(keys)
            for block, key in enumerate(keys):
                of.check(there.get(key), block)
                assert there.get_location(key).owner_rank == there.rank
                with here.pin(key) as view:
                    of.check(view, block)


def prefills_are_checked(device: torch.device) -> None:
    """Arguments that the kernel cannot take are refused before the launch."""
    with caches(device) as (here, _):
        prefill = Prefill(here.world_table, 1, device)
        of = Projections(3, torch.float32, device)
        q, k, v, positions, by = of.q, of.k, of.v, of.positions, of.by
        for wrong, why in (
            ((q.bfloat16(), k, v, positions, by), "q must be torch.float32"),
            ((q, k.transpose(0, 1).contiguous().transpose(0, 1), v, positions, by), "k must be .* contiguous"),
            ((q, k, v[:2], positions, by), "v must be"),
            ((q, k, v, positions.int(), by), "positions must be torch.int64"),
            ((q[..., :24].contiguous(), k[..., :24].contiguous(), v[..., :24].contiguous(), positions, by), "dim must"),
        ):
            try:
                prefill.launch(*wrong)
            except ValueError as error:
                assert re.search(why, str(error)), error
                continue
            raise AssertionError(f"{why}: was not refused")


def attention_kernels_publish(device: torch.device) -> None:
    """K and V are those of the prompt, with checksums and without; the result is torch's, also of a refused block."""
    block = attention_prefill.BLOCK
    ways = [
        *((False, torch.float32, 2 * block + 5, each) for each in WARPS),
        *((True, torch.bfloat16, block + 1, each) for each in reversed(WARPS)),
    ]
    if device.type == "cpu":  # where compiling takes long: each dtype, and each size of CTAs
        ways = ways[1::2]
    for checksum, dtype, tokens, warps in ways:
        with caches(device, checksum=checksum) as (here, there):
            of = Projections(tokens, dtype, device)
            q, k, v, within = of.q, of.k, of.v, of.within
            keys = [f"block:{n}" for n in range(-(-tokens // block))]
            prefill = AttentionPrefill(here.world_table, 4, device, warps)
            prefill.batch.fill(attention_prefill.block_requests(digests(here, keys), k, there.rank))
            for expected in (OK, DUPLICATE):
                out = prefill.launch(q, k, v)
                assert prefill.batch.answers() == [expected] * len(keys)
                want = attention_prefill.reference(q, k, v)
                torch.testing.assert_close(out.float(), want, rtol=within, atol=within)
            for n, key in enumerate(keys):
                span = slice(n * block, (n + 1) * block)
                assert torch.equal(there.get(key), torch.stack([k[span], v[span]]).transpose(1, 2))


def attention_prefills_are_checked(device: torch.device) -> None:
    """Arguments that the kernel cannot take are refused before the launch."""
    with caches(device) as (here, _):
        prefill = AttentionPrefill(here.world_table, 1, device)
        of = Projections(3, torch.float32, device)
        q, k, v = of.q, of.k, of.v
        for wrong, why in (
            ((q.bfloat16(), k, v), "q must be torch.float32"),
            ((q, k.transpose(0, 1).contiguous().transpose(0, 1), v), "k must be .* contiguous"),
            ((q, k, v[:2]), "v must be"),
            ((q[:, :3].contiguous(), k, v), "q_heads must be"),
            ((q[..., :24].contiguous(), k[..., :24].contiguous(), v[..., :24].contiguous()), "dim must"),
        ):
            try:
                prefill.launch(*wrong)
            except ValueError as error:
                assert re.search(why, str(error)), error
                continue
            raise AssertionError(f"{why}: was not refused")


def prefill_kernels_answer_each_object(device: torch.device) -> None:
    """In one launch some objects are refused, and the others are whole; the tickets serve the next launch."""
    with caches(device, pages=2 * PAGES_OF_BLOCK) as (here, there):
        of = Projections(3 * BLOCK, torch.float32, device)
        prefill = Prefill(here.world_table, 4, device)

        keys = ["a", "b", "c"]  # of which two fit
        requests = block_requests(digests(here, keys), of.k, there.rank)
        statuses = of.put(prefill, requests)
        assert sorted(statuses) == [OK, OK, FULL], statuses
        stored, refused = statuses.index(OK), statuses.index(FULL)
        of.check(there.get(keys[stored]), stored)
        assert [there.exists(key) for key in keys] == [each == OK for each in statuses]
        assert of.put(prefill, requests) == [FULL if each == FULL else DUPLICATE for each in statuses]

        both = of.put(prefill, block_requests(digests(here, ["one", "one"]), of.k[: 2 * BLOCK], here.rank))
        assert sorted(both) == [OK, DUPLICATE]
        of.check(here.get("one"), both.index(OK))

        there.remove(keys[stored])
        assert not_full(lambda: of.put(prefill, [requests[refused]])) == [OK]
        of.check(there.get(keys[refused]), refused)


def a_prefill_is_replayed_from_a_graph(device: torch.device) -> None:
    """A captured prefill, and a decode that reads its objects: other keys at each replay. (Only on a GPU.)"""
    if device.type != "cuda":
        return
    replays = 100
    with caches(device, pages=2 * replays * PAGES_OF_BLOCK) as (here, there):
        of = Projections(2 * BLOCK, torch.float32, device)
        prefill = Prefill(here.world_table, 2, device)
        validated = ValidatedDecode(here.world_table, 1, 2, KV_HEADS, device)
        tokens = torch.tensor([2 * BLOCK], device=device)
        of.put(prefill, [])
        validated.fill([[(0, 0)]])
        validated.launch(of.q[:1], tokens)  # compiled before they are captured
        torch.cuda.synchronize(device)
        graph: Any = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            prefill.launch(of.q, of.k, of.v, of.positions, of.by)
            prefill.batch.report()
            out = validated.launch(of.q[:1], tokens)
        kv = torch.stack([rotated(of.k, of.positions, of.by), of.v])
        want = reference(of.q[0], kv)[None]
        for replay in range(replays):
            keys = [here.digest(f"{replay}:{block}") for block in range(2)]
            prefill.batch.fill(block_requests(keys, of.k, there.rank))
            validated.fill([keys])
            graph.replay()
            torch.cuda.synchronize(device)
            assert prefill.batch.reported.tolist() == [OK] * 2
            assert (validated.statuses == OK).all()
            torch.testing.assert_close(out, want, rtol=of.within, atol=of.within)
        of.check(there.get(f"{replays - 1}:1"), 1)


class Contexts:
    """Sequences of different lengths whose blocks lie in a segment, and torch's results for a query to each."""

    def __init__(self, owner: NanoKVCache, lengths: list[int], dtype: torch.dtype, device: torch.device) -> None:
        dice = torch.Generator().manual_seed(2)
        self.lengths = lengths
        self.keys: list[list[str]] = []
        self.blocks: dict[str, torch.Tensor] = {}
        self.q = torch.randn(len(lengths), Q_HEADS, DIM, generator=dice).to(dtype).to(device)
        self.within = WITHIN[dtype]
        want = []
        for n, length in enumerate(lengths):
            kv = torch.randn(2, length, KV_HEADS, DIM, generator=dice).to(dtype).to(device)
            want.append(reference(self.q[n], kv))
            self.keys.append([f"{n}:{block}" for block in range(-(-length // BLOCK))])
            for block, key in enumerate(self.keys[n]):
                self.blocks[key] = kv[:, block * BLOCK : (block + 1) * BLOCK].contiguous()
                owner.put(key, self.blocks[key], preferred_segment=owner.rank)
        self.want = torch.stack(want)
        self.tokens = torch.tensor(lengths, device=device)

    def validated(self, cache: NanoKVCache) -> ValidatedDecode:
        """Ready to launch."""
        made = ValidatedDecode(cache.world_table, len(self.keys), max(map(len, self.keys)), KV_HEADS, cache.device)
        made.fill([digests(cache, of_one) for of_one in self.keys])
        return made

    def check(self, out: torch.Tensor, sequences: slice = slice(None)) -> None:
        """The results of these sequences are right."""
        torch.testing.assert_close(out.float()[sequences], self.want[sequences], rtol=self.within, atol=self.within)


def decode_kernels_read_in_place(device: torch.device) -> None:
    """Pinned and validated, from both segments; pinned blocks stay; blocks of another shape are refused."""
    for dtype in (torch.float32, torch.bfloat16):
        with caches(device) as (here, there):
            of = Contexts(there, [2 * BLOCK + 5, 1, BLOCK], dtype, device)
            for cache in (here, there):
                of.check(decode_pinned(cache, of.q, of.keys, of.lengths, KV_HEADS))
                validated = of.validated(cache)
                of.check(validated.launch(of.q, of.tokens))
                assert (validated.statuses == OK).all()
            with here.pin("0:0"):
                try:
                    there.remove("0:0")
                except ObjectPinned:
                    pass
                else:
                    raise AssertionError("a pinned object was removed")
            for keys, lengths, error in (
                ([["none"]], [1], KeyNotFound),
                ([["0:0"]], [1], ValueError),  # a block of 16 tokens is not one of 1
                ([["0:0"]], [BLOCK + 1], ValueError),
            ):
                try:
                    decode_pinned(here, of.q[:1], keys, lengths, KV_HEADS)
                except error:
                    continue
                raise AssertionError(f"{keys} {lengths} was not refused")
            there.remove("0:0")  # no pin is left


def decode_kernels_say_what_is_missing(device: torch.device) -> None:
    """Without pins: MISS, NOT_READY and SIZE, only for the sequence concerned; then all blocks are there again."""
    with caches(device) as (here, there):
        of = Contexts(there, [BLOCK + 3, BLOCK + 4, BLOCK + 5, 7], torch.float32, device)
        validated = of.validated(here)
        for key in ("0:1", "1:1", "2:0"):
            there.remove(key)
        here.open_for_write("1:1", of.blocks["1:1"].nbytes, preferred_segment=there.rank)
        there.put("2:0", of.blocks["2:0"][:, :5].contiguous())
        out = validated.launch(of.q, of.tokens)
        expected = [Status.MISS, Status.NOT_READY, Status.SIZE, Status.OK]
        assert validated.statuses.tolist() == [[each] * KV_HEADS for each in expected]
        assert not out[:3].any()
        of.check(out, slice(3, 4))
        here.abort("1:1")
        there.remove("2:0")
        for key in ("0:1", "1:1", "2:0"):
            there.put(key, of.blocks[key], preferred_segment=here.rank)
        of.check(validated.launch(of.q, of.tokens))
        assert (validated.statuses == OK).all()


# --- without a pin, while the object goes -------------------------------------------------------
@contextmanager
def instead(name: str, function: Callable[..., Any]) -> Iterator[None]:
    """Interpreted kernels of `paged_decode` call another function under a name."""
    real = getattr(paged_decode, name)
    setattr(paged_decode, name, function)
    try:
        yield
    finally:
        setattr(paged_decode, name, real)


class Unrest:
    """A block in `owner`, which another rank changes between a kernel's look-up and its loads."""

    def __init__(self, owner: NanoKVCache, key: str, data: torch.Tensor) -> None:
        self._owner, self._key, self._data = owner, key, data
        self._load_block = paged_decode.load_block
        self.foreign = torch.full_like(data, 1000.0)

    def during(self, action: Callable[[], None]) -> Any:
        """Do something before each load."""

        def load_block(*args: Any) -> Any:
            action()
            return self._load_block(*args)

        return instead("load_block", load_block)

    def replace(self) -> None:
        """Remove the block, once, and put another object into its pages."""
        if self._owner.exists(self._key):
            pages = self._owner.get_location(self._key).payload_off
            self._owner.remove(self._key)
            self._owner.put("foreign", self.foreign, preferred_segment=self._owner.rank)
            assert self._owner.get_location("foreign").payload_off == pages

    def move(self) -> None:
        """The same, and put the block back elsewhere, once."""
        if not self._owner.exists("foreign"):
            self.replace()
            self._owner.put(self._key, self._data, preferred_segment=self._owner.rank)

    def move_again(self) -> None:
        """`move` each time."""
        if self._owner.exists("foreign"):
            self._owner.remove("foreign")
        self.move()

    def rest(self) -> None:
        """Put everything back as it was."""
        if self._owner.exists("foreign"):
            self._owner.remove("foreign")
        if not self._owner.exists(self._key):
            self._owner.put(self._key, self._data, preferred_segment=self._owner.rank)


def blocks_that_move_are_not_used(device: torch.device) -> None:
    """A kernel whose block goes before it is loaded misses it, finds it again, or gives up. (Only interpreted.)"""
    if not paged_decode.INTERPRETED:
        return
    with caches(device) as (here, there):
        of = Contexts(there, [BLOCK], torch.float32, device)
        validated = of.validated(here)
        unrest = Unrest(there, "0:0", of.blocks["0:0"])
        for action, expected in ((unrest.replace, MISS), (unrest.move, OK), (unrest.move_again, Status.TORN)):
            with unrest.during(action):
                out = validated.launch(of.q, of.tokens)
            assert validated.statuses.tolist() == [[expected] * KV_HEADS], action
            if expected == OK:
                of.check(out)
            else:
                assert not out.any()
            unrest.rest()
        # the results from those bytes, had the kernel not looked at the header afterwards
        with unrest.during(unrest.replace), instead("validate", lambda *_: library.OK):
            assert (validated.launch(of.q, of.tokens)[:, : Q_HEADS // KV_HEADS] == 1000.0).all()


BODIES: tuple[Callable[[torch.device], None], ...] = (
    prefill_kernels_publish,
    prefills_are_checked,
    attention_kernels_publish,
    attention_prefills_are_checked,
    prefill_kernels_answer_each_object,
    a_prefill_is_replayed_from_a_graph,
    decode_kernels_read_in_place,
    decode_kernels_say_what_is_missing,
    blocks_that_move_are_not_used,
)
