"""A kernel in PTX whose accesses wait for each other."""

LINKS = 10  #: loads, each at the address that the one before returned
CHAIN = """
.version 8.0
.target sm_90
.address_size 64
.visible .entry chain(.param .u64 start)
.reqntid 32
{
    .reg .b64 %rd<3>;
    .reg .pred %p<2>;
    .reg .b32 %r<3>;
    ld.param.u64 %rd1, [start];
    mov.u32 %r1, 0;
again:
    ld.volatile.global.u64 %rd1, [%rd1];
    add.s32 %r1, %r1, 1;
    setp.lt.s32 %p1, %r1, 10;
    @%p1 bra again;
    ret;
}
"""
