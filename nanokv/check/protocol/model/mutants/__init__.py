"""The protocol and its host, broken on purpose: a checker that does not notice them checks nothing.

Each mutant changes the source text of a device function or of the host, and names the scenarios that should notice it.
A mutant that survives them all fails `nanokv check mutants`: then a scenario is missing, or a check, or the broken code
is not needed. Weaker orderings: `orderings`.

mutant       what a mutant is, and how it is declared
run          every mutant must be noticed
found_by     for each mutant an execution that notices it
freelist     free lists, extents and slots
refusals     producers that are refused although there is room
objects      headers, and operations on whole objects
eviction     leases, free neighbours that are joined instead
keys         the directory, pins, eviction under readers
host         the ring, the index, grace periods, the sweeper, the audit
layouts      the table of layouts
terms        labels and quotas
copies       further copies of an object
progress     operations that wait for others
cooperative  tickets, objects in parts
runs         objects that one CTA puts one after another
remote       the rounds of a reader on another host
pulls        puts from another host
wire         the sockets of other hosts
"""

from importlib import import_module

from nanokv.check.protocol.model.mutants.mutant import MUTANTS

__all__ = ["MUTANTS"]

for theme in (
    "freelist",
    "refusals",
    "objects",
    "eviction",
    "keys",
    "host",
    "layouts",
    "terms",
    "copies",
    "progress",
    "cooperative",
    "runs",
    "remote",
    "pulls",
    "wire",
):
    import_module(f"{__name__}.{theme}")  # declares its mutants
