"""What the machines raise. Every message names the kernel, the instruction, and the line of the source.

EmulatorError
├── Malformed        text that is no kernel, or a launch whose arguments do not fit
├── Unsupported      an instruction, a modifier or an operand that the machine does not know
├── MemoryFault      an access to memory that the launch may not touch
│   └── Misaligned   ... or whose address is no multiple of its width
├── NotWaited        a register is used while a load that was issued may still write it: an s_waitcnt is missing
├── Divergence       lanes or warps wait for each other in different places
├── Trap             the kernel gave up: `trap`, or a device_assert that failed
└── NoProgress       a launch took more steps than it may: it waits for what does not come
"""

from nanokv.errors import NanoKVError


class EmulatorError(NanoKVError):
    """The base of every error here."""


class Malformed(EmulatorError):
    """Text that is no module with one kernel, or arguments that do not fit its parameters."""


class Unsupported(EmulatorError):
    """An instruction, a modifier or an operand that the machine does not know. Nothing is guessed."""


class MemoryFault(EmulatorError):
    """An access to memory that the launch may not touch."""


class Misaligned(MemoryFault):
    """An access whose address is no multiple of its width."""


class NotWaited(EmulatorError):
    """An instruction uses a register that an outstanding load writes."""


class Divergence(EmulatorError):
    """Lanes or warps wait for each other in different places: on a GPU a deadlock, or undefined."""


class Trap(EmulatorError):
    """The kernel gave up: `trap`, or a device_assert that failed."""


class NoProgress(EmulatorError):
    """A launch took more steps than it may."""
