"""Files of saved objects: a warm segment on a disk, to be loaded into any other world (docs/save_load.md).

layout          the bytes of such a file
source          the objects of a segment, as a save reads them
own_segment     the same, of a rank
mapped_segment  the same, of a world that is seen from outside, living or dead
save            from segments to a file
reading         a file, checked before anything of it is used
room            whether a segment has room for an object, so that nothing has to be evicted for it
load            from a file to segments
times           times in a file
"""
