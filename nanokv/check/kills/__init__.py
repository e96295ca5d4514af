"""Rounds in which processes are killed, and what must be true afterwards.

run     many rounds in one world
rounds  what happens in a round, and what is looked at
world   the world that the rounds use
work    the roles that ranks play
"""
