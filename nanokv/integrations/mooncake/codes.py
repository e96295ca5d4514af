"""The answers of Mooncake Store: 0 or more is success, below it is one of these codes.

Numbers and names: `mooncake-store/include/types.h` of Mooncake. Here are those that NanoKV answers with. They are plain
integers, as callers of the real one get them.
"""


class ErrorCode:
    """Why a call failed."""

    OK = 0
    INTERNAL_ERROR = -1
    SEGMENT_NOT_FOUND = -101
    NO_AVAILABLE_HANDLE = -200
    INVALID_PARAMS = -600
    INVALID_WRITE = -700
    REPLICA_IS_NOT_READY = -703
    OBJECT_NOT_FOUND = -704
    OBJECT_ALREADY_EXISTS = -705
    OBJECT_HAS_LEASE = -706
    REPLICA_NOT_FOUND = -710
    OBJECT_REPLICA_BUSY = -714
    TRANSFER_FAIL = -800
    CHECKSUM_MISMATCH = -801
    NOT_SUPPORTED = -1012
    FILE_NOT_FOUND = -1100
    TASK_NOT_FOUND = -1400
    DFS_SERVICE_UNAVAILABLE = -1601


def name_of(code: int) -> str:
    """The name of a code; empty for OK."""
    return next((name for name, value in vars(ErrorCode).items() if value == code and code), "")
