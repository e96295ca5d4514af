"""Loads, stores and atomics: widths, masks, bounds, addresses; LDS; and what s_waitcnt must cover."""

import numpy as np
import pytest

from nanokv.device.emulation.errors import MemoryFault, NotWaited
from nanokv.device.gcn.registers import LANES
from tests.support.gcn_text import executed, lanes_of

pytestmark = pytest.mark.proved

WAIT = "\n\ts_waitcnt vmcnt(0)"


def room(count: int = 1024) -> np.ndarray:
    """Bytes that count up, from a multiple of 64 on."""
    raw = np.zeros(count + 64, np.uint8)
    made = raw[-raw.ctypes.data % 64 :][:count]
    made[:] = np.arange(count) % 251
    return made


@pytest.mark.parametrize(
    ("kind", "width"), [("ubyte", 1), ("ushort", 2), ("dword", 4), ("dwordx2", 8), ("dwordx4", 16)]
)
def test_loads_and_stores_of_each_width(kind: str, width: int) -> None:
    source, target, mask = room(), room(), 0x0F0F_0000_0000_FFFF
    target[:] = 0
    data = {1: "v8", 2: "v8", 4: "v8", 8: "v[8:9]", 16: "v[8:11]"}[width]
    lanes = {"v[2:3]": [source.ctypes.data + width * n for n in range(LANES)], "v1": [width * n for n in range(LANES)]}
    store = {"ubyte": "byte", "ushort": "short"}.get(kind, kind)
    code = f"global_load_{kind} {data}, v[2:3], off{WAIT}\n\tglobal_store_{store} v1, {data}, s[4:5]"
    executed(code, {**lanes, "s[4:5]": target.ctypes.data}, exec_=mask)
    for n in range(LANES):
        expected = source[width * n :][:width] if mask >> n & 1 else 0
        assert (target[width * n :][:width] == expected).all()


def test_signs_and_halves() -> None:
    data = np.array([0x80, 0x7F, 0xFF, 0x01], np.uint8)
    code = (
        "global_load_sbyte v4, v1, s[4:5]\n\tglobal_load_ubyte v5, v1, s[4:5] offset:2\n"
        "\tglobal_load_sshort v6, v1, s[4:5] offset:2\n\tglobal_load_ubyte_d16_hi v7, v1, s[4:5] offset:1" + WAIT
    )
    wave = executed(code, {"v1": 0, "v7": 0x12345678, "s[4:5]": data.ctypes.data}, exec_=1)
    assert [lanes_of(wave, f"v{n}")[0] for n in (4, 5, 6, 7)] == [0xFFFFFF80, 0xFF, 0x1FF, 0x7F5678]
    executed(
        "global_store_byte_d16_hi v1, v2, s[4:5]", {"v1": 0, "v2": 0xAA550000, "s[4:5]": data.ctypes.data}, exec_=1
    )
    assert data[0] == 0x55


def test_buffers_bound_their_accesses() -> None:
    """Lanes outside load zeros and store nothing: so Triton masks them."""
    data = room(256)
    before = data.copy()
    offsets = [8 * n if n % 2 == 0 else 0x80000000 for n in range(LANES)]
    resource = {"s[8:9]": data.ctypes.data, "s[10:11]": 0x27000 << 32 | 256}
    code = (
        "buffer_load_dwordx2 v[4:5], v1, s[8:11], 0 offen"
        + WAIT
        + "\n\tbuffer_store_dwordx2 v[6:7], v1, s[8:11], 0 offen"
    )
    wave = executed(code, {"v1": offsets, "v[4:5]": 9, "v[6:7]": 0, **resource})
    loaded = lanes_of(wave, "v[4:5]")
    words = before.view(np.uint64)
    assert loaded == [int(words[n]) if n % 2 == 0 and n < 32 else 0 for n in range(LANES)]
    assert (data.view(np.uint64)[0::2] == 0).all() and (data.view(np.uint64)[1::2] == words[1::2]).all()


@pytest.mark.parametrize(
    ("operation", "old", "value", "new"),
    [
        ("add", 5, 2**64 - 1, 4),
        ("sub", 5, 6, 2**64 - 1),
        ("swap", 5, 6, 6),
        ("and", 0b110, 0b011, 0b010),
        ("or", 0b110, 0b011, 0b111),
        ("xor", 0b110, 0b011, 0b101),
        ("smin", 5, 2**64 - 1, 2**64 - 1),
        ("umin", 5, 2**64 - 1, 5),
        ("smax", 5, 2**64 - 1, 5),
        ("umax", 5, 2**64 - 1, 2**64 - 1),
    ],
)
def test_atomics(operation: str, old: int, value: int, new: int) -> None:
    word = np.array([old], np.uint64)
    code = f"global_atomic_{operation}_x2 v[4:5], v1, v[2:3], s[4:5] sc0 sc1" + WAIT
    wave = executed(code, {"v1": 0, "v[2:3]": value, "s[4:5]": word.ctypes.data}, exec_=1)
    assert (int(word[0]), lanes_of(wave, "v[4:5]")[0]) == (new, old)
    word[0] = old
    executed(
        f"global_atomic_{operation}_x2 v1, v[2:3], s[4:5] sc1",
        {"v1": 0, "v[2:3]": value, "s[4:5]": word.ctypes.data},
        exec_=1,
    )
    assert int(word[0]) == new


def test_compare_and_swap_takes_the_new_value_first() -> None:
    word = np.array([7], np.uint64)
    code = "global_atomic_cmpswap_x2 v[6:7], v[8:9], v[2:5], off offset:-8 sc0 sc1" + WAIT
    for expected, left in ((6, 7), (7, 1)):
        values = {"v[8:9]": word.ctypes.data + 8, "v[2:3]": 1, "v[4:5]": expected}
        assert lanes_of(executed(code, values, exec_=1), "v[6:7]")[0] == 7
        assert int(word[0]) == left


def test_each_lane_does_its_atomic() -> None:
    word = np.zeros(1, np.uint32)
    executed("global_atomic_add v1, v2, s[4:5] sc1", {"v1": 0, "v2": 3, "s[4:5]": word.ctypes.data})
    assert word[0] == 3 * LANES


@pytest.mark.parametrize(
    ("code", "address", "message"),
    [
        ("global_load_dword v1, v[2:3], off", 0x10, "4 bytes at 0x10, which is not mapped"),
        ("global_store_byte v[2:3], v1, off", 0x10, "1 bytes at 0x10, which is not mapped"),
        ("global_load_dwordx4 v[4:7], v[2:3], off", 0x1002, "16 bytes at 0x1002, which is not a multiple of 4"),
        ("s_load_dword s4, s[6:7], 0x0", 0x20, "4 bytes at 0x20, which is not mapped"),
    ],
)
def test_wild_accesses_are_errors(code: str, address: int, message: str) -> None:
    with pytest.raises(MemoryFault, match=message) as error:
        executed(code, {"v[2:3]": address, "s[6:7]": address})
    assert f"instruction 0, `{code}`" in str(error.value)


def test_a_misaligned_atomic_is_an_error() -> None:
    data = room()
    with pytest.raises(MemoryFault, match="not a multiple of 8"):
        executed("global_atomic_add_x2 v[2:3], v[4:5], off sc1", {"v[2:3]": data.ctypes.data + 4}, exec_=1)


# --- LDS ---
@pytest.mark.parametrize(
    ("kind", "data"), [("b8", "v4"), ("b16", "v4"), ("b32", "v4"), ("b64", "v[4:5]"), ("b128", "v[4:7]")]
)
def test_lds_keeps_what_lanes_write(kind: str, data: str) -> None:
    width = int(kind[1:]) // 8
    read = {"b8": "u8", "b16": "u16"}.get(kind, kind)
    code = f"ds_write_{kind} v1, {data} offset:16\n\tds_read_{read} {data}, v2 offset:16\n\ts_waitcnt lgkmcnt(0)"
    lanes = list(range(LANES))
    values = {"v1": [width * n for n in lanes], "v2": [width * (63 - n) for n in lanes], "v4": [n + 1 for n in lanes]}
    assert lanes_of(executed(code, values, lds=1040), "v4") == [64 - n for n in lanes]


def test_lds_in_pairs() -> None:
    code = (
        "ds_write2_b32 v1, v2, v3 offset0:1 offset1:3\n"
        "\tds_read2_b32 v[4:5], v1 offset0:3 offset1:1\n\ts_waitcnt lgkmcnt(0)"
    )
    wave = executed(code, {"v1": 0, "v2": 11, "v3": 13}, exec_=1, lds=64)
    assert lanes_of(wave, "v[4:5]")[0] == 11 << 32 | 13


def test_lds_has_an_end() -> None:
    with pytest.raises(MemoryFault, match="4 bytes at 64 of 64"):
        executed("ds_write_b32 v1, v2", {"v1": 64}, lds=64)


# --- waits ---
LOADS = "global_load_dword v4, v1, s[4:5]\n\tglobal_load_dword v5, v1, s[4:5] offset:4\n\t"
NOT_COVERED = {
    "read": LOADS + "v_mov_b32_e32 v6, v4",
    "too few": LOADS + "s_waitcnt vmcnt(1)\n\tv_mov_b32_e32 v6, v5",
    "written": LOADS + "v_mov_b32_e32 v5, 0",
    "stored": LOADS + "global_store_dword v1, v4, s[4:5]",
    "address": LOADS + "global_load_dword v6, v4, s[4:5]",
    "wrong counter": LOADS + "s_waitcnt lgkmcnt(0)\n\tv_mov_b32_e32 v6, v4",
    "scalar": "s_load_dword s8, s[4:5], 0x0\n\ts_add_u32 s9, s8, 1",
    "scalars in any order": (
        "s_load_dword s8, s[4:5], 0x0\n\ts_load_dword s9, s[4:5], 0x0\n\ts_waitcnt lgkmcnt(1)\n\ts_mov_b32 s7, s8"
    ),
    "atomic": "global_atomic_add v4, v1, v2, s[4:5] sc0 sc1\n\tv_readfirstlane_b32 s8, v4",
    "permute": "ds_bpermute_b32 v4, v1, v2\n\tv_mov_b32_e32 v6, v4",
}
COVERED = {
    "one of two": LOADS + "s_waitcnt vmcnt(1)\n\tv_mov_b32_e32 v6, v4",
    "both": LOADS + "s_waitcnt vmcnt(0)\n\tv_add_u32_e32 v6, v4, v5",
    "stores count too": LOADS + "global_store_dword v1, v2, s[4:5]\n\ts_waitcnt vmcnt(1)\n\tv_add_u32_e32 v6, v4, v5",
    "loads return in order": LOADS + "global_load_dword v4, v1, s[4:5]\n\ts_waitcnt vmcnt(0)\n\tv_mov_b32_e32 v6, v4",
}


@pytest.mark.parametrize("case", NOT_COVERED)
def test_a_missing_wait_is_an_error(case: str) -> None:
    data = room()
    with pytest.raises(NotWaited, match="no s_waitcnt"):
        executed(NOT_COVERED[case], {"v1": 0, "v2": 0, "s[4:5]": data.ctypes.data}, exec_=1)


@pytest.mark.parametrize("case", COVERED)
def test_a_wait_covers_what_is_old_enough(case: str) -> None:
    data = room()
    executed(COVERED[case], {"v1": 0, "v2": 0, "s[4:5]": data.ctypes.data}, exec_=1)
