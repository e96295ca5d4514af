"""The protocol under the simulated machine: scenarios, what must hold after every execution, and who drives them.

stage       a small world in which tasks put, get, remove, pin; the production host code runs there too
oracle      what must hold: every step of a STATE word, and I1 to I10 when all has come to rest
scenario    what a scenario is, and the list of them
explore     drives a scenario through schedules; a failure is a short string that replays it
mutants     deliberately broken variants of the protocol, and who must find them
"""
