"""What the machine raises: what a kernel did wrong, and where.

GcnError            also: a text that is no kernel, or a launch that does not fit it
├── Unsupported     an instruction, operand or modifier that this machine does not know
├── MemoryFault     an access to memory that is not mapped, or not aligned
├── NotWaited       a register is used while a load that was issued may still write it: an s_waitcnt is missing
└── NoProgress      a launch executed more instructions than it may: it waits for what does not come
"""

from nanokv.errors import NanoKVError


class GcnError(NanoKVError):
    """A kernel did what it must not do; the message ends with the instruction and its source line."""


class Unsupported(GcnError):
    """The machine does not know an instruction, operand or modifier."""


class MemoryFault(GcnError):
    """An access lies outside of mapped memory, or is not aligned."""


class NotWaited(GcnError):
    """An instruction uses a register that an outstanding load writes."""


class NoProgress(GcnError):
    """More instructions than the limit of a launch."""
