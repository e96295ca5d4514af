"""Rounds in which processes are killed, and what must be true afterwards.

run     several worlds, and many rounds in each
world   the world that they use, and the checks of it
roles   the roles that ranks play
"""
