"""The protocol and its kernels: what every rank may do to a segment, written once, in Triton.

Imports nothing of the project outside this folder. Read in this order:

    layout      the bytes of a segment: the only place where an offset is spelled
    status      what an operation answers
    memory      the memory vocabulary (Triton); memory_native is the same for a CPU
    world       how a rank finds segments and their geometry: a private table, never shared memory
    freelist    lock-free stacks of pages and of header slots; lists: where they stand, which is asked when
    extent      payload pages: size classes, splitting, the bump pointer
    header      one record an object; its state word decides everything
    directory   from a key to a header
    ring        hints for the host: something became READY, something went away
    activity    who is at work in a segment, so that the host can wait for a grace period
    pins        readers that hold an object in place
    retire      frees what a DEAD header holds
    evict       what a producer does that finds a segment full
    put         the whole of the above, in order; get; remove
    reclaim     what the owner's host does about what the dead left
    ticket      many CTAs work on one object: who begins it, who ends it
    parts       one object, put or read in parts by many CTAs
    request     what a launch is asked to put or get, in device memory; batch: a table of them, and its launches
    retarget    rebuilds any of these functions over another vocabulary
    native      the CPU machine; launch: the machine that launches kernels (GPU, or Triton's interpreter)
"""

if __name__ != "nanokv.device":
    raise ImportError("import nanokv.device: the bare name `device` would be a second copy of it")
