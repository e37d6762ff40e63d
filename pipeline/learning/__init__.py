"""The training: what its steps compute, on one or several processes, and what is exported. This decides the weights."""
