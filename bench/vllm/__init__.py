"""vLLM engines in processes of their own, for measurements and tests: needs vLLM (`make test-vllm` installs it).

model      makes a tiny model with random weights
process    an engine as its parent sees it
child      the process itself: commands come on stdin, answers go to stdout
fork_server  processes of engines, forked from one that has imported vLLM
"""
