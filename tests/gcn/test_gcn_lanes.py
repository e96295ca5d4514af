"""What crosses lanes: DPP with its masks, readlane, mbcnt, bpermute."""

from collections.abc import Callable

import pytest

from nanokv.device.gcn.registers import LANES, MASK64
from tests.support.gcn_text import executed, lanes_of

pytestmark = pytest.mark.proved

IDS = [100 + n for n in range(LANES)]
OLD = 7
# control -> the lane that lane n reads; None: none
CONTROLS: dict[str, Callable[[int], int | None]] = {
    "quad_perm:[1,0,3,2]": lambda n: n ^ 1,
    "quad_perm:[3,2,1,0]": lambda n: n ^ 3,
    "quad_perm:[0,0,0,0]": lambda n: n & ~3,
    "row_mirror": lambda n: n ^ 15,
    "row_half_mirror": lambda n: n ^ 7,
    "row_shr:1": lambda n: n - 1 if n % 16 >= 1 else None,
    "row_shr:8": lambda n: n - 8 if n % 16 >= 8 else None,
    "row_shl:4": lambda n: n + 4 if n % 16 < 12 else None,
    "row_ror:3": lambda n: n & ~15 | (n - 3) % 16,
    "row_newbcast:5": lambda n: n & ~15 | 5,
    "row_bcast:15": lambda n: n // 16 * 16 - 1 if n >= 16 else None,
    "row_bcast:31": lambda n: 31 if n >= 32 else None,
    "wave_shr:1": lambda n: n - 1 if n else None,
}


@pytest.mark.parametrize("bound", ["", " bound_ctrl:1"])
@pytest.mark.parametrize("control", CONTROLS)
def test_dpp_reads_another_lane(control: str, bound: str) -> None:
    """Of two rows only, and not of lanes that do not act."""
    mask = MASK64 & ~(1 << 5 | 1 << 15 | 1 << 40)
    code = f"v_mov_b32_dpp v1, v2 {control} row_mask:0xf bank_mask:0xf{bound}"
    wave = executed(code, {"v1": OLD, "v2": IDS}, exec_=mask)
    expected = []
    for n in range(LANES):
        source = CONTROLS[control](n)
        taken = 0 if source is None or not mask >> source & 1 else IDS[source]
        expected.append(OLD if not mask >> n & 1 or not (taken or bound) else taken)
    assert lanes_of(wave, "v1") == expected


def test_dpp_masks_rows_and_banks() -> None:
    code = "v_add_u32_dpp v1, v2, v3 row_mirror row_mask:0xa bank_mask:0x3 bound_ctrl:1"
    wave = executed(code, {"v1": OLD, "v2": IDS, "v3": 1000})
    assert lanes_of(wave, "v1") == [
        1000 + IDS[n ^ 15] if n // 16 in (1, 3) and n % 16 // 4 in (0, 1) else OLD for n in range(LANES)
    ]


def test_values_move_between_lanes_and_scalars() -> None:
    code = (
        "v_readfirstlane_b32 s4, v2\n\tv_readlane_b32 s5, v2, 63\n"
        "\tv_readlane_b32 s6, v2, s8\n\tv_writelane_b32 v1, s8, 2"
    )
    wave = executed(code, {"v1": OLD, "v2": IDS, "s8": 9}, exec_=0b11000)
    assert wave.scalar[4:7] == [103, 163, 109]
    assert lanes_of(wave, "v1") == [9 if n == 2 else OLD for n in range(LANES)]
    assert executed("v_readfirstlane_b32 s4, v2", {"v2": IDS}, exec_=0).scalar[4] == 100


def test_lanes_below_are_counted() -> None:
    mask = 0x8421_0000_FFFF_000F
    code = "v_mbcnt_lo_u32_b32 v1, s4, 0\n\tv_mbcnt_hi_u32_b32 v1, s5, v1"
    wave = executed(code, {"s[4:5]": mask})
    assert lanes_of(wave, "v1") == [(mask & (1 << n) - 1).bit_count() for n in range(LANES)]


def test_lanes_read_the_lane_that_an_address_names() -> None:
    wave = executed(
        "ds_bpermute_b32 v1, v2, v3\n\ts_waitcnt lgkmcnt(0)", {"v2": [4 * (n + 65) for n in range(LANES)], "v3": IDS}
    )
    assert lanes_of(wave, "v1") == [IDS[(n + 1) % 64] for n in range(LANES)]
    wave = executed("ds_bpermute_b32 v1, v2, v3\n\ts_waitcnt lgkmcnt(0)", {"v1": OLD, "v2": 16, "v3": IDS}, exec_=0b10)
    assert lanes_of(wave, "v1")[:3] == [OLD, 0, OLD]  # lane 4 does not act
