"""Launches: the grid, barriers, errors that end them, and what caches may show."""

from contextlib import nullcontext

import numpy as np
import pytest

from nanokv.device.emulation.errors import Malformed, MemoryFault, NoProgress
from nanokv.device.gcn.machine import Machine
from nanokv.device.gcn.memory import HostMemory
from tests.support.gcn_text import module

pytestmark = pytest.mark.proved

ARGUMENTS = "s_load_dwordx4 s[4:7], s[0:1], 0x0\n\ts_load_dwordx2 s[8:9], s[0:1], 0x10\n\ts_waitcnt lgkmcnt(0)\n\t"


def test_each_workgroup_knows_its_place() -> None:
    out = np.zeros(5 * 64, np.uint32)
    code = (
        "s_load_dwordx2 s[4:5], s[0:1], 0x0\n\ts_lshl_b32 s3, s2, 6\n\tv_add_u32_e32 v1, s3, v0\n"
        "\tv_lshlrev_b32_e32 v2, 2, v1\n\ts_waitcnt lgkmcnt(0)\n\tglobal_store_dword v2, v1, s[4:5]"
    )
    machine = Machine(seed=3)
    machine.run(module(code), (5, 1, 1), [out.ctypes.data])
    assert (out == np.arange(5 * 64)).all()
    assert machine.instructions == 5 * 7 and machine.launches == {"kernel": 1}


EXCHANGE = ARGUMENTS + (
    "v_lshlrev_b32_e32 v1, 2, v0\n\tds_write_b32 v1, v0\n\ts_waitcnt lgkmcnt(0)\n\ts_barrier\n"
    "\tv_xor_b32_e32 v2, 0xfc, v1\n\tv_xor_b32_e32 v2, 0x300, v2\n\tds_read_b32 v3, v2\n\ts_waitcnt lgkmcnt(0)\n"
    "\tglobal_store_dword v1, v3, s[4:5]"
)


def test_waves_of_a_workgroup_meet_at_barriers() -> None:
    out = np.zeros(256, np.uint32)
    expected = np.arange(256) ^ 0xFF
    without = module(EXCHANGE.replace("\ts_barrier\n", ""), 3, lds=1024)
    differed = 0
    for seed in range(5):
        Machine(seed).run(module(EXCHANGE, 3, lds=1024), (1, 1, 1), [out.ctypes.data, 0, 0], warps=4)
        assert (out == expected).all()
        Machine(seed, burst=1.0).run(without, (1, 1, 1), [out.ctypes.data, 0, 0], warps=4)
        differed += int((out != expected).any())
    assert differed  # a missing barrier shows


def test_a_barrier_that_some_waves_never_reach() -> None:
    """One that spins: no progress. One that has ended: it is not waited for."""
    spin = "v_readfirstlane_b32 s3, v0\n\ts_cmp_eq_u32 s3, 0\n.Lspin:\n\ts_cbranch_scc1 .Lspin\n\ts_barrier"
    with pytest.raises(NoProgress, match="more than 1000 instructions"):
        Machine(limit=1000).run(module(spin), (1, 1, 1), [0], warps=2)
    ends = "v_readfirstlane_b32 s3, v0\n\ts_cmp_eq_u32 s3, 0\n\ts_cbranch_scc1 .Lend_here\n\ts_barrier\n.Lend_here:"
    Machine().run(module(ends), (1, 1, 1), [0], warps=2)


def test_accesses_stay_in_the_ranges_that_are_given() -> None:
    code = ARGUMENTS + "v_lshlrev_b32_e32 v1, 2, v0\n\tglobal_store_dword v1, v0, s[4:5]"
    data = np.zeros(64, np.uint32)
    first = data.ctypes.data
    for end, fits in ((first + 256, True), (first + 252, False)):
        machine = Machine(host=HostMemory([(first, end)]))
        with nullcontext() if fits else pytest.raises(MemoryFault, match="not mapped"):
            machine.run(module(code, 3), (1, 1, 1), [first, 0, 0])


def test_a_kernel_without_end_is_an_error() -> None:
    text = module("s_nop 0").replace("\ts_endpgm\n", "")
    with pytest.raises(Malformed, match="no instruction 1"):
        Machine().run(text, (1, 1, 1), [0])


def test_equal_seeds_give_equal_schedules() -> None:
    word = np.zeros(1, np.uint64)
    trails = []
    code = ARGUMENTS + (
        "s_mov_b64 exec, 1\n\tv_mov_b32_e32 v1, 0\n\tv_mov_b64_e32 v[2:3], 1\n"
        "\tglobal_atomic_add_x2 v[4:5], v1, v[2:3], s[4:5] sc0 sc1\n\ts_waitcnt vmcnt(0)\n"
        "\tv_lshlrev_b32_e32 v6, 2, v4\n\tv_mov_b32_e32 v7, s2\n\tglobal_store_dword v6, v7, s[6:7]"
    )
    for seed in (1, 1, 2):
        word[0], order = 0, np.zeros(8, np.uint32)
        Machine(seed, burst=1.0).run(module(code, 3), (8, 1, 1), [word.ctypes.data, order.ctypes.data, 0])
        assert sorted(order) == list(range(8))
        trails.append(order.tolist())
    assert trails[0] == trails[1] != trails[2]


# --- message passing: bytes, and a flag that says that they are there ---
RELEASE = "buffer_wbl2 sc0 sc1\n\ts_waitcnt vmcnt(0)\n"
ACQUIRE = "buffer_inv sc0 sc1\n"
PASSING = ARGUMENTS + (
    "s_mov_b64 exec, 1\n\tv_mov_b32_e32 v1, 0\n\tv_mov_b64_e32 v[2:3], 42\n\tv_mov_b64_e32 v[4:5], 1\n"
    "\ts_cmp_eq_u32 s2, 0\n\ts_cbranch_scc0 .Lreader\n"
    "\tglobal_store_dwordx2 v1, v[2:3], s[4:5]\n"
    f"\t{RELEASE}"
    "\tglobal_atomic_swap_x2 v1, v[4:5], s[6:7] sc1\n"
    "\ts_endpgm\n"
    ".Lreader:\n\tglobal_load_dwordx2 v[8:9], v1, s[4:5]\n"
    ".Lpoll:\n\tglobal_load_dwordx2 v[6:7], v1, s[6:7] sc0 sc1\n\ts_waitcnt vmcnt(0)\n"
    "\tv_readfirstlane_b32 s10, v6\n\ts_cmp_eq_u32 s10, 0\n\ts_cbranch_scc1 .Lpoll\n"
    f"\t{ACQUIRE}"
    "\tglobal_load_dwordx2 v[8:9], v1, s[4:5]\n\ts_waitcnt vmcnt(0)\n\tglobal_store_dwordx2 v1, v[8:9], s[8:9]"
)


def read_by_seeds(code: str, seeds: int, warps: int = 1, *, weak: bool = True) -> set[int]:
    """What readers find behind the flag, in some schedules."""
    found = set()
    for seed in range(seeds):
        words = np.zeros(64, np.uint64)
        addresses = [words[n:].ctypes.data for n in (0, 32, 48)]  # lines of their own
        Machine(seed, weak=weak).run(module(code, 3), (2, 1, 1), addresses, warps=warps)
        found.add(int(words[48]))
    return found


def test_a_release_and_an_acquire_pass_a_message() -> None:
    assert read_by_seeds(PASSING, 60) == {42}


@pytest.mark.parametrize(
    "missing", ["buffer_wbl2 sc0 sc1", "s_waitcnt vmcnt(0)\n\tglobal_atomic", "buffer_inv sc0 sc1"], ids=str.split
)
def test_without_a_part_of_it_old_bytes_are_read(missing: str) -> None:
    broken = PASSING.replace(missing, "global_atomic" if "atomic" in missing else "s_nop 0", 1)
    assert broken != PASSING
    assert read_by_seeds(broken, 60) == {0, 42}
    assert read_by_seeds(broken, 60, weak=False) == {42}  # without caches nothing shows


# Waves store, meet at a barrier, and one of them releases. Triton 3.9 writes no wait in front of the barrier.
FOUR_WAVES = (
    PASSING.replace(
        "s_mov_b64 exec, 1\n",
        "v_readfirstlane_b32 s11, v0\n\ts_mov_b64 exec, 1\n",
    )
    .replace(
        f"\tglobal_store_dwordx2 v1, v[2:3], s[4:5]\n\t{RELEASE}",
        "\ts_cmp_lg_u32 s11, 64\n\ts_cbranch_scc1 .Lstored\n\tglobal_store_dwordx2 v1, v[2:3], s[4:5]\n"
        f".Lstored:\n\tWAIT\n\ts_barrier\n\ts_cmp_eq_u32 s11, 0\n\ts_cbranch_scc0 .Lover\n\t{RELEASE}",
    )
    .replace(
        "\ts_endpgm\n.Lreader:\n", "\ts_branch .Lover\n.Lreader:\n\ts_cmp_eq_u32 s11, 0\n\ts_cbranch_scc0 .Lover\n"
    )
    + "\n.Lover:"
)


def test_each_wave_waits_for_its_stores_before_the_barrier_in_front_of_a_release() -> None:
    assert read_by_seeds(FOUR_WAVES.replace("WAIT", "s_waitcnt vmcnt(0)"), 60, warps=4) == {42}
    assert read_by_seeds(FOUR_WAVES.replace("WAIT", "s_nop 0"), 60, warps=4) == {0, 42}


def test_own_stores_are_seen_also_in_caches() -> None:
    """Of all widths, before and after they are written back."""
    code = ARGUMENTS + (
        "v_lshlrev_b32_e32 v1, 2, v0\n\tglobal_load_dword v2, v1, s[4:5]\n\ts_waitcnt vmcnt(0)\n"
        "\tv_add_u32_e32 v2, 5, v2\n\tglobal_store_dword v1, v2, s[4:5]\n"
        "\tv_mov_b32_e32 v3, 9\n\tglobal_store_byte v1, v3, s[4:5] offset:1\n"
        "\tglobal_load_dword v4, v1, s[4:5]\n\ts_waitcnt vmcnt(0)\n\tglobal_store_dword v1, v4, s[6:7]"
    )
    for seed in range(10):
        data, out = np.arange(64, dtype=np.uint32), np.zeros(64, np.uint32)
        Machine(seed, weak=True).run(module(code, 3), (1, 1, 1), [data.ctypes.data, out.ctypes.data, 0])
        expected = np.arange(64) + 5 & 0xFFFF00FF | 0x900
        assert (out == expected).all() and (data == expected).all()
