"""Copies between tensors and objects.

descriptors    dtype and shape as words, and tensors that are refused
host_tensors   tensors whose values are their bytes in host memory: what they are, and where
dlpack         torch's C function that describes a tensor
single         one tensor
object_calls   put, get, exists, remove and take of one object: native where possible, else in Python
lazy_tensors   whether a tensor is lazily negated or conjugated, as native code asks
batched        many tensors: one launch on a GPU, else one by one
paged          blocks of an engine's paged KV cache
engine_layers  the tensors of such a cache, and what an object of some of its layers looks like
layerwise      blocks that are stored layer by layer
reshard        slices of objects of another layout
cache_writer   an engine's step that writes tokens into its paged cache, and publishes full blocks
replicas       copies in other segments
plans          objects that the caller's own kernel writes
pinned         objects held in place
growing_batch  the requests of a call as one launch, for `batched` and `paged`
"""
