"""Histories of real threads and processes, and whether they are linearizable for every key.

run              the ways to record, each checked
recordings       the ways to record
recorder         compiled loops that record
key_model        what one key promises
linearizability  the search for an order
timeline         a history that has none, for people
"""
