"""A search: many trials of one model with values drawn from a space, the best of which is tested."""

SAMPLERS = ("tpe", "random", "grid")
PRUNERS = ("median", "none")
