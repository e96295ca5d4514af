"""SipHash in native code, against its published tags, OpenSSL, and itself in plain Python."""

import shutil
import subprocess

import pytest

from nanokv.check.wire.plain_wire import plain_siphash, siphash

KEY = bytes(range(16))
#: of the inputs of no byte and of the byte 0, in the reference code's vectors of 128 bits
PUBLISHED = {b"": "a3817f04ba25a8e66df67214c7550293", b"\0": "da87c1d86b99af44347659119b22fc45"}


def test_published_tags() -> None:
    for data, tag in PUBLISHED.items():
        assert siphash(KEY, data).hex() == plain_siphash(KEY, data).hex() == tag


@pytest.mark.parametrize("nbytes", [*range(18), 63, 64, 65, 255, 256, 1000, 4095])
def test_every_length(nbytes: int) -> None:
    data = bytes((7 * i + nbytes) % 256 for i in range(nbytes))
    assert siphash(KEY, data) == plain_siphash(KEY, data)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the program openssl")
@pytest.mark.parametrize("nbytes", [1, 15, 16, 33, 512])
def test_as_openssl_has_it(nbytes: int) -> None:
    data, key = bytes((3 * i) % 256 for i in range(nbytes)), bytes(range(100, 116))
    command = ["openssl", "mac", "-macopt", f"hexkey:{key.hex()}", "-macopt", "size:16", "SIPHASH"]
    done = subprocess.run(command, input=data, capture_output=True, timeout=60, check=True)
    assert siphash(key, data).hex() == done.stdout.decode().strip().lower()
