"""What the user's interpreter loads.

This folder stands first on the program's PYTHONPATH. It holds as little as possible, so that it hides no module of the
program.
"""
