"""What checks NanoKV: its protocol under simulated machines, and a running world on the user's own machine.

command      `nanokv check`
run          its parts, and how much of each is tried
concurrency  random work of threads
histories    what threads and processes called and were answered; recorder (compiled loops), key_model, linearizability
model/       the protocol under the simulated machine
report       rows of the table that every check fills
work         random work on a cache, and payloads that tell whose they are
hammer       the same as compiled code, without a pause
slow         the same again, lingering after each load
ranks        ranks in processes of their own, which can be killed
preload      what their fork server loads
kills        kill rounds: ranks die at random moments, and nothing is lost for it
kill_rounds  what happens in a round, and what is looked at
kill_world   the world that the rounds use
kill_work    the roles that ranks play
"""
