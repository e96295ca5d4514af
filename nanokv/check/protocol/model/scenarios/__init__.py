"""The scenarios by theme, in the order of the table. A scenario declares itself; a new theme is named below.

single_steps  two device functions at one word
freelist      one free list; header slots
extents       pages
refusals      FULL and NO_HEADER are no accidents
objects       puts, reads, removals and pins of whole objects
eviction      what eviction leaves alone: leased objects, and all while free neighbours would do
copies        further copies of an object, in other segments
cooperative   one object that several CTAs put or get
runs          objects that one CTA puts one after another
hints         the announce ring, the index, limits
dying         tasks that are killed, or given up
layouts       rows of the table of layouts
terms         labels: objects whose time is over; quotas
host          grace periods, audits, events
remote        a reader on another host
pulls         puts from another host
wire          the sockets of other hosts: frames that are torn, late, half, or sent again
"""

from importlib import import_module

from nanokv.check.protocol.model.scenario import SCENARIOS

__all__ = ["SCENARIOS"]

for theme in (
    "single_steps",
    "freelist",
    "extents",
    "refusals",
    "objects",
    "eviction",
    "copies",
    "cooperative",
    "runs",
    "hints",
    "dying",
    "layouts",
    "terms",
    "host",
    "remote",
    "pulls",
    "wire",
):
    import_module(f"{__name__}.{theme}")  # declares its scenarios
