"""The owner's end of the wire (`nanokv.device.wire.owner`), and frames of chance.

plain_wire  the asker's end in plain Python, which sends whatever it is told
frames      frames of chance, most of them authentic, and what the owner answers
"""
