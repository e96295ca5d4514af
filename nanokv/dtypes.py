"""The dtypes of stored objects, by name: importing this needs no torch."""

# codes are part of the stored format: append, never renumber. 0 is raw bytes.
DTYPE_NAMES = (
    "uint8",
    "int8",
    "int16",
    "int32",
    "int64",
    "float16",
    "bfloat16",
    "float32",
    "float64",
    "bool",
    "complex64",
    "complex128",
    "uint16",
    "uint32",
    "uint64",
    "float8_e4m3fn",
    "float8_e5m2",
    "float8_e4m3fnuz",
    "float8_e5m2fnuz",
    "float8_e8m0fnu",
)


def dtype_name(code: int) -> str:
    """The name of torch's dtype of a stored code from 1."""
    return DTYPE_NAMES[code - 1] if 1 <= code <= len(DTYPE_NAMES) else f"dtype {code}"
