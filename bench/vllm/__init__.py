"""vLLM engines in processes of their own, for measurements and tests: needs vLLM (`make test-vllm` installs it).

model      makes a tiny model with random weights
process    an engine as its parent sees it
child      the process itself: commands come on stdin, answers go to stdout
prompts    prompts that share prefixes
"""
