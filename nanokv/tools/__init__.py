"""What looks at worlds and machines, and shows what they do. Nothing but commands and checks imports a tool.

cli         the command line, `nanokv`
doctor      what this machine has, and which heaps work on it
demo        prefill and decode in two processes, each token checked
replay      traces of requests, run again
into_world  files of saved objects, back into a world, or into a new one
"""
