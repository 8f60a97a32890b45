"""Run a program and record it: the front of the pipe.

`launch` starts the user's own command and collects what its processes left behind; `inject/` lives inside those
processes; `session` is the same recorder around a loop that the caller marks. Nothing here reads a trace.
"""
