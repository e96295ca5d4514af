"""How a host makes room in a segment: for a put that found none, and before one does.

free_pages   which pages are free, for estimates and statistics
coalesce     joins neighbouring free extents
make_room    what any host does after FULL: joins free extents, evicts a run
water_marks  the owner's poller evicts before producers must, if asked to
"""
