"""What the PTX machine raises. Every message names the kernel, the line of the PTX, and the line of the source.

PtxError
├── Malformed        text that is no PTX, or a launch whose arguments do not fit
├── Unsupported      an instruction, a modifier or an operand that the machine does not know
├── MemoryFault      an access to memory that the launch may not touch
│   └── Misaligned   ... or whose address is no multiple of its width
├── Divergence       lanes or warps wait for each other in different places
├── Trap             the kernel gave up: `trap`, or a device_assert that failed
└── NoProgress       a launch took more steps than it may
"""

from nanokv.errors import NanoKVError


class PtxError(NanoKVError):
    """The base of every error here."""


class Malformed(PtxError):
    """Text that is no PTX module with one entry, or arguments that do not fit its parameters."""


class Unsupported(PtxError):
    """An instruction, a modifier or an operand that the machine does not know. Nothing is guessed."""


class MemoryFault(PtxError):
    """An access to memory that the launch may not touch."""


class Misaligned(MemoryFault):
    """An access whose address is no multiple of its width."""


class Divergence(PtxError):
    """Lanes or warps wait for each other in different places: on a GPU a deadlock, or undefined."""


class Trap(PtxError):
    """The kernel gave up: `trap`, or a device_assert that failed."""


class NoProgress(PtxError):
    """A launch took more steps than it may."""
