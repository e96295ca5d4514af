"""A world at work on the user's own machine.

concurrency   random work of threads
histories     calls and answers of threads and processes: linearizable for every key
kills         rounds in which ranks die at random moments, and nothing is lost
corruption    wrong words in a segment: every operation ends, and gives no wrong bytes
litmus        litmus tests on this machine's memory
soak          load and kills for as long as one likes: memory stays flat, nothing is lost
random_calls  random calls on a cache
payloads      keys and payloads: every word of a payload holds its key and version
hammer        random work as compiled code, without a pause
slow          device functions that linger after each load
rank_process  a rank in a process of its own, which can be killed
ranks         such ranks with a cache on a world of shared memory
preload       the modules that their fork server imports
"""
