"""The benchmark suite as a command: bench."""

import typer


def bench(context: typer.Context) -> None:
    """Measure how fast NanoKV is on this machine; `nanokv bench -h` lists the options, `--list` the questions.

    The same as `python -m bench` in a clone.
    """
    from nanokv.bench.__main__ import main

    raise typer.Exit(main(context.args, "nanokv bench"))
