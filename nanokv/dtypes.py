"""The dtypes of stored objects, by name: importing this needs no torch."""

# codes are part of the stored format: append, never renumber. 0 is raw bytes.
_DTYPES = (
    ("uint8", 1),
    ("int8", 1),
    ("int16", 2),
    ("int32", 4),
    ("int64", 8),
    ("float16", 2),
    ("bfloat16", 2),
    ("float32", 4),
    ("float64", 8),
    ("bool", 1),
    ("complex64", 8),
    ("complex128", 16),
    ("uint16", 2),
    ("uint32", 4),
    ("uint64", 8),
    ("float8_e4m3fn", 1),
    ("float8_e5m2", 1),
    ("float8_e4m3fnuz", 1),
    ("float8_e5m2fnuz", 1),
    ("float8_e8m0fnu", 1),
)
DTYPE_NAMES = tuple(name for name, _ in _DTYPES)
DTYPE_BYTES = tuple(size for _, size in _DTYPES)  #: per element


def dtype_name(code: int) -> str:
    """The name of torch's dtype of a stored code from 1."""
    return DTYPE_NAMES[code - 1] if 1 <= code <= len(DTYPE_NAMES) else f"dtype {code}"
