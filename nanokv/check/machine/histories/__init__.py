"""Histories of real threads and processes, and whether they are linearizable for every key.

run              records in each way, and checks every history
recordings       the ways to record
recorder         compiled loops that record
key_model        the sequential specification of one key
linearizability  the search for an order
timeline         a history that has none, for people
"""
