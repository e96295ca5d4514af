"""The bytes of a segment, and how a rank finds them.

layout        offsets, packed words, magic and version: the only place where a number of bytes is spelled
layout_table  docs/layout.md, made from `layout`
geometry      how large each region is, and where it begins
world_table   a rank's private table of all segments: what device functions take as `world`
views         a segment in host memory, as numpy arrays
"""
