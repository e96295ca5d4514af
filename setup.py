"""Refuses to build from a clone without symbolic links, whose wheel would lack packages. All else: pyproject.toml."""

import sys
from pathlib import Path

from setuptools import setup

LINKS = ("bench", "compat_v1", "device", "host_poller")  # folders of the repository that are packages of nanokv

broken = [f"nanokv/{name}" for name in LINKS if not (Path(__file__).parent / "nanokv" / name).is_dir()]
if broken:
    sys.exit(
        f"nanokv cannot be built from this clone: {', '.join(broken)} must be symbolic links to folders, and are not. "
        "Clone again with `git clone -c core.symlinks=true` (on Windows: in developer mode)."
    )
setup()
