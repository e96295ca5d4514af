"""One rank of a world: the public class, and its parts.

cache          NanoKVCache: the public API
engine         the parts of a rank, joined
virtual_world  all ranks of a world in this process
waiting        waits for objects
changed_terms  leases, priorities and times to live of objects that are there
ending         the end of a cache: closed, dropped, or inherited by a fork
"""
