"""Authenticated control messages between the members of a cluster: questions over TCP, events over ZeroMQ.

sealed      the bytes of a message, and the MAC that shows who wrote it
counts      what was refused or dropped, and why
replies     what a handler of a server is, and what it may answer
server      takes questions in one thread, and answers them
asker       asks and tells, from any thread
tcp         the sockets of both, and their addresses; `ports`: one of a range; `frames`: messages in a stream of bytes
feed        events from one member to all who follow it; gaps are noticed
loop        the thread of a server or a subscriber: sleeps until something comes
sockets     ZeroMQ sockets of the feed

Members share a secret. Messages are authenticated, and not encrypted: who sees the network reads them, and who reaches
a port can take its connections and its memory. So ports are bound to the loopback interface unless the caller names
another.
"""
