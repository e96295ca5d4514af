"""One file per question. Each has a `QUESTION`, which `python -m bench NAME` runs.

alloc       allocation in compiled code, by one thread and by two that share a segment
announce    from the return of put to the owner's listener: how fast the owner's host learns of a new object
burst       calls in bursts, as an engine makes them at the end of a step, with the owner's poller in this process or
            elsewhere
cluster     gets and puts of another node of a cluster, over each transport, beside the bytes alone
connections what an owner pays for many connections, and how many puts it takes by them
crowd       put and get in a segment with a million objects, beside one with a thousand
full        a put into a full segment, which evicts, beside a put into one with room; and a refusal
imports     the time of a fresh process to import, and to its first put, with all compiled code and bytecode on disk
ingest      how fast the owner's poller makes index entries of announcements, and how far its index is behind when it
            is busy
latency     put, get, exists and remove in a closed loop, each beside a plain copy of the same bytes
load        put and get when requests come at times of their own, and not when the last one has returned
many        many objects in one call: what an object costs, beside one copy of all bytes
memory      what an object costs its owner's host in memory, and what the control regions take of a segment
overlap     overlap of compute and I/O on a CPU: a prefill whose KV is stored while it computes
pages       is a page of 256 KiB right? What its size does to put and get, to memory lost by rounding, and to control
            regions
peers       NanoKV beside its peers, in one run, on the same bytes
pieces      what an object in several extents would cost
plan        t_plan
replicas    what a put with copies costs, a copy made later, and a removal
scaling     several producers put into the segments of several owners at once, each of them a process of its own
seal        what it costs to encipher all that goes over the wire
space       what size classes cost, in bytes and in time
steps       where a put and a get of 1 KiB spend their time
sweep       what the owner's sweep over all headers costs, and an index made from headers alone
throughput  how fast bytes are copied by put and get, beside `copy_` of the same bytes into and out of the same memory
wait        from the return of put to the return of another rank's wait; beside it a wake-up alone, without a cache
"""
