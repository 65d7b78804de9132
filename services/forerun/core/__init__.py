"""Pure decisions: identity, effects, freshness, order, taint and the session machine.

Nothing here does I/O, reads a clock or draws a random number: what is needed from outside comes in as an argument.
"""
