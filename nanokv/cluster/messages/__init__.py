"""Authenticated events between the members of a cluster, over ZeroMQ; and what they share with the wire.

sealed   the bytes of an event, and the MAC that shows who wrote it
feed     events from one member to all who follow it; gaps are noticed
loop     the thread of a follower: sleeps until something comes
sockets  ZeroMQ sockets of the feed
counts   what was refused or dropped, and why
replies  what a handler of questions is, and what it may answer
tcp      addresses, and sockets that listen; `ports`: one of a range
unix     the same of UNIX sockets, for processes of one host

Members share a secret. Events are authenticated, and not encrypted: who sees the network reads them, and who reaches a
port can take its connections. So ports are bound to the loopback interface unless the caller names another.
"""
