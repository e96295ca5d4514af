"""The protocol under the simulated machine: scenarios, what must hold in every execution, and mutants.

scenario      what a scenario is, and how it is declared
scenarios/    the scenarios, by theme
small_world   a small world in which their tasks put, get, remove, pin; the production host code runs there too
remote_reader a reader on another host, over a simulated_link; remote_gets: its gets, and what must hold of them
remote_put    a put from another host, which the owner pulls
wire_owner    an owner's end of the wire, over a socket of native_calls
explore       takes a scenario through executions; a failure is a short string that replays it
run           runs all scenarios, and fills the table
mutants/      the protocol and its host broken on purpose, each in one place; all must be noticed
orderings     each ordering made weaker: the execution that notices it, or the reason why it stays
audit_search  executions in which an audit always looks while a node passes from place to place
"""
