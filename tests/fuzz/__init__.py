"""Generated inputs: whatever is typed or lies on disk, the program answers with a result or with one line.

strategies.py makes inputs, world.py runs a command in this process and watches what it does, properties.py says what
must hold, test_<kind>.py puts the three together. A few hundred examples, always the same, are part of `make test`;
`make fuzz` tries new ones for ten minutes (__main__.py).
"""
