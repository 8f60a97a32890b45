"""Run a program and record it: the front of the pipe.

`launch` starts the user's command and collects what its processes recorded. `inject/` lives inside those processes.
`session` runs the same recorder around a loop whose steps the caller marks. Nothing here reads a trace.
"""
