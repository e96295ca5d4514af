"""The protocol under the simulated machine: scenarios, what must hold after every execution, and who drives them.

stage       a small world in which tasks put, get, remove, pin; the production host code runs there too
steps       what must hold at each step, of STATE words and pin ledgers
rest        what must hold when all has come to rest: I1 to I10
scenario    what a scenario is; scenarios_* are them, by theme
suite       the list of them, and the run that fills the table
explore     drives a scenario through schedules; a failure is a short string that replays it
mutants     deliberately broken variants, and who must find them; mutants_* are them, by theme; mutant is what one is
orderings   each ordering made weaker: who finds it, or why it stays
"""
