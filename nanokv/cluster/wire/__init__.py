"""The wire between members: connections over TCP, and over UNIX sockets on one host, and what goes by them.

The native code of both ends is in `nanokv.device.wire`. Here is what it cannot do:

handshake  how two members agree on the keys of a connection
ciphers    the system's libcrypto, for connections that are sealed
server     the owner's end: who may connect, messages, and puts that find no room
client     the asker's end: connections to one member, and the exchanges over them; `ways`: a client for each member
guests     how a process of this host is let into the memory of another one
exchanges  gets from other nodes, and puts and removals there
"""
