"""The kernels: thin, each one calls one device function, and what launches them.

frame     how arguments come in and answers go out
objects   one CTA, one call: begin, finish, lookup, remove, pin, ...
transfer  the bytes: many CTAs for one object, or one CTA for a small one
many      many objects in one launch: put_many, get_many, find_many
host      one CTA, one call, for the owner's host: drain the ring, reclaim, the audit
lane      a frame, the stream that it is used on, and the launches
"""
