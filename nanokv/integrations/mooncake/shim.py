"""Makes a folder in which `import mooncake.store` finds NanoKV, for PYTHONPATH.

Its package `mooncake` has the modules that are NanoKV's. All other modules of that package (`mooncake.engine`,
`mooncake.structured_object_store`, ...) come from the real one, if it is installed further down the path.
"""

from pathlib import Path

from nanokv.errors import InvalidArgument

_MARK = "# Made by `nanokv mooncake-shim`: this package `mooncake` stores in NanoKV.\n"
_INIT = f'''{_MARK}"""Mooncake's names over NanoKV; modules that are not here come from the real package, if any."""

from pkgutil import extend_path

__path__ = extend_path(__path__, __name__)
'''
_MODULES = {
    "store": "from nanokv.integrations.mooncake import *\n",
    "async_store": "from nanokv.integrations.mooncake.async_store import *\n",
    "buffer_pool": "from nanokv.integrations.mooncake.buffer_pool import *\n",
    "mooncake_config": "from nanokv.integrations.mooncake.mooncake_config import *\n",
}


def make(folder: Path) -> list[Path]:
    """Write the package into a folder, which is made if it is not there; the files. An older one is replaced.

    Raises:
        InvalidArgument: there is another package `mooncake`, or the folder cannot be written.
    """
    package = folder / "mooncake"
    try:
        if package.exists() and _MARK.strip() not in _first_lines(package / "__init__.py"):
            raise InvalidArgument(f"{package} is there already, and is not made by this command")
        package.mkdir(parents=True, exist_ok=True)
        files = {"__init__": _INIT} | {name: _MARK + text for name, text in _MODULES.items()}
        return [_written(package / f"{name}.py", text) for name, text in files.items()]
    except OSError as error:
        raise InvalidArgument(f"{package} cannot be written: {error}") from None


def _first_lines(file: Path) -> str:
    return file.read_text(encoding="utf-8", errors="replace") if file.is_file() else ""


def _written(file: Path, text: str) -> Path:
    file.write_text(text, encoding="utf-8")
    return file
