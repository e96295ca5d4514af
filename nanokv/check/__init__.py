"""What checks NanoKV: its protocol under simulated machines, and a running world on the user's own machine.

report       rows of the table that every check fills
"""
