"""The wire: puts, gets and questions between two processes over a stream socket, in native code at both ends.

records   frames, and what native code and its host tell each other of a connection
siphash   SipHash-2-4, 128 bits: the MAC of a frame
frames    how many bytes a frame has, whether its MAC is right, and how one is closed
parcels   the stream of frames of a sealed connection, enciphered by AES-256-GCM of libcrypto
owner     the owner's loop over its connections
asker     one question, and its answer
calls     a put and a get from key and tensor to status, in one call
"""
