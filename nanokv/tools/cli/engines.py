"""Commands about inference engines, and what they store in: vllm-flags, mooncake-shim."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from nanokv.errors import InvalidArgument
from nanokv.tools.cli.output import Json, console, long_cells, print_json


def vllm_flags(
    model: Annotated[str, typer.Argument(help="The model that vLLM serves: a name or a folder.")] = "MODEL",
    tensor_parallel: Annotated[int, typer.Option(min=1, help="Workers of each engine.")] = 1,
    decode_tensor_parallel: Annotated[
        int | None, typer.Option(min=1, help="Workers of the decode engine, if not as many.")
    ] = None,
    together: Annotated[bool, typer.Option(help="One engine that prefills and decodes, instead of two.")] = False,
    prefill_port: Annotated[int, typer.Option(min=1, max=65535, help="Of the prefill server.")] = 8100,
    decode_port: Annotated[int, typer.Option(min=1, max=65535, help="Of the decode server.")] = 8200,
    port: Annotated[int, typer.Option(min=1, max=65535, help="Of the proxy; with --together of the engine.")] = 8000,
    kv_memory: Annotated[
        str, typer.Option(help="Of each engine's own cache, as 8GiB: for two engines on one GPU.", show_default=False)
    ] = "",
    given: Annotated[
        list[str] | None, typer.Option("--set", metavar="FLAG=VALUE", help="A flag, as size=4GiB.")
    ] = None,
    table: Annotated[bool, typer.Option("--list", help="Show all flags instead, with their defaults.")] = False,
    as_json: Json = False,
) -> None:
    """The command lines with which vLLM uses NanoKV: for a prefill engine and a decode engine, or for one engine."""
    from nanokv.integrations.vllm.flags import Ports, command_lines, flag_texts

    if table:
        rows = flag_texts()
        if as_json:
            print_json([dict(zip(("flag", "default", "what"), row, strict=True)) for row in rows])
        else:
            screen = console()
            screen.print(long_cells(screen, ("flag", "default", "what"), rows, {}))
        return
    flags = dict(_flag(each) for each in given or ())
    engines = command_lines(
        model,
        tensor_parallel=tensor_parallel,
        decode_tensor_parallel=decode_tensor_parallel,
        together=together,
        flags=flags,
        ports=Ports(prefill_port, decode_port, port),
        kv_memory=kv_memory,
    )
    if as_json:
        print_json([{"what": engine.what, "command": engine.command} for engine in engines])
    else:
        typer.echo("\n\n".join(f"# {engine.what}\n{engine.command}" for engine in engines))


def mooncake_shim(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A folder for PYTHONPATH; it is made.")],
    as_json: Json = False,
) -> None:
    """Make a folder in which `import mooncake.store` finds NanoKV: programs of Mooncake Store run on it unchanged."""
    from nanokv.integrations.mooncake.shim import make

    files = make(folder)
    if as_json:
        print_json([str(file) for file in files])
    else:
        typer.echo(f"PYTHONPATH={folder} makes `import mooncake.store` NanoKV's")


def _flag(text: str) -> tuple[str, Any]:
    """The name and the value of `name=value`; a value that is JSON is read as such."""
    name, found, value = text.partition("=")
    if not found:
        raise InvalidArgument(f"--set takes FLAG=VALUE, not {text!r}")
    try:
        return name.removeprefix("nanokv."), json.loads(value)
    except json.JSONDecodeError:
        return name.removeprefix("nanokv."), value
