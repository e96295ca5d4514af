"""Names of objects, and what they mean.

hashing    the digest of a key: 96 bits of a hash, and the tag of an identity
digests    the digests of many keys, as one array
identity   model, tokenizer, tenant: whose object a key names
kv_layout  how the KV of a block lies in an object
"""
