"""The command line, `nanokv`. Each command imports what it needs when it runs: torch and numba take seconds.

    worlds      the worlds of this host: ls, stats, key, fsck, rm
    clusters    a cluster: ls, stats and fsck by the URL of its registry
    saved       files of saved objects: save, load
    machine     this machine: doctor, warmup, demo
    engines     inference engines, and what they store in: vllm-flags, mooncake-shim
    traces      traces of requests: replay
    benchmarks  the benchmark suite: bench
    output      tables for terminals and pipes, JSON, sizes

`check` is in `nanokv.check.command`.
"""

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from nanokv import __version__
from nanokv.check.command import check
from nanokv.errors import NanoKVError
from nanokv.tools.cli.benchmarks import bench
from nanokv.tools.cli.engines import mooncake_shim, vllm_flags
from nanokv.tools.cli.machine import demo, doctor, warmup
from nanokv.tools.cli.saved import load, save
from nanokv.tools.cli.traces import replay
from nanokv.tools.cli.worlds import fsck, key, ls, rm, stats

__all__ = ["app", "main"]

BAD = 2  #: exit code: the command could not be carried out


class _Group(TyperGroup):
    """Prints an error as one line, without a traceback."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except NanoKVError as error:
            typer.echo(f"nanokv: {error}", err=True)
            raise typer.Exit(BAD) from None


app = typer.Typer(
    cls=_Group,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="A distributed cache for the KV tensors of LLM inference.",
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"nanokv {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


for _command in (demo, doctor, warmup, check, ls, stats, key, fsck, rm, save, load, replay, vllm_flags, mooncake_shim):
    app.command()(_command)
# the suite reads its arguments itself, also -h
app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []})(bench)


def main() -> None:
    """The entry point."""
    app(prog_name="nanokv")
