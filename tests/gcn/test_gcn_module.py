"""The text of a kernel: instructions, labels, arguments, and where it begins."""

import pytest

from nanokv.device.emulation.errors import Malformed, Unsupported
from nanokv.device.gcn.machine import Machine
from nanokv.device.gcn.module import read, statement
from nanokv.device.gcn.program import Program
from tests.support.gcn_text import module

pytestmark = pytest.mark.proved


def test_operands_and_modifiers_are_told_apart() -> None:
    made = statement("buffer_load_dwordx4 v[2:5], v1, s[20:23], 0 offen offset:16 sc0 nt")
    assert (made.name, made.operands) == ("buffer_load_dwordx4", ("v[2:5]", "v1", "s[20:23]", "0"))
    assert made.modifiers == {"offen": "", "offset": "16", "sc0": "", "nt": ""}
    made = statement("v_mov_b32_dpp v8, v4 quad_perm:[3,2,1,0] row_mask:0xf bank_mask:0xf bound_ctrl:1")
    assert (made.name, made.encoding, made.operands) == ("v_mov_b32", "dpp", ("v8", "v4"))
    assert made.modifiers["quad_perm"] == "[3,2,1,0]"
    assert statement("s_waitcnt vmcnt(3) lgkmcnt(0)").modifiers == {"vmcnt": "3", "lgkmcnt": "0"}
    assert statement("buffer_inv sc0 sc1").modifiers == {"sc0": "", "sc1": ""}


def test_a_kernel_has_code_labels_and_arguments() -> None:
    kernel = read(module("s_cbranch_scc1 .Lhere\n\ts_nop 0\n.Lhere:\n\ts_nop 1", arguments=2))
    assert [each.text for each in kernel.code] == ["s_cbranch_scc1 .Lhere", "s_nop 0", "s_nop 1", "s_endpgm"]
    assert kernel.labels[".Lhere"] == 2
    assert [(each.offset, each.size, each.kind) for each in kernel.arguments] == [
        (0, 8, "by_value"),
        (8, 8, "by_value"),
    ]
    assert kernel.settings["user_sgpr_count"] == 2


@pytest.mark.parametrize(
    "line", ["v_sin_f32_e32 v1, v2", "v_add_u32_e64 v1, v2, v3 mul:2", "s_getreg_b32 s4, hwreg(1)"]
)
def test_what_is_not_known_is_an_error_that_names_the_instruction(line: str) -> None:
    text = module("s_nop 0\n\ts_nop 7").replace("s_nop 7", line)
    with pytest.raises(Unsupported, match="instruction 1, `") as error:
        Program(read(text))
    assert line in str(error.value)


def test_arguments_are_counted() -> None:
    with pytest.raises(Malformed, match="1 arguments too many"):
        Machine().run(module("s_nop 0", arguments=1), (1, 1, 1), [1, 2])
