"""The bytes of a segment, and how a rank finds them.

record        how a stored struct is written down
layout        offsets, packed words, magic and version: the only file that spells a number of bytes
host_records  records in a process's private memory, by which Python and native code talk
location      where an object lies, as nodes tell each other
layout_table  makes docs/layout.md from `layout`
world_table   a rank's private table of all segments, and the `world` that a kernel makes of it
native_world  that `world` on a CPU: the address of the table
geometry      the size and offset of each region, and the first bytes of a new segment
views         a segment in host memory, as numpy arrays
clock         the clock of all times in a segment: of last uses, ends of leases and of lives
last_access   ACCESS words as a host reads them from header records
"""
