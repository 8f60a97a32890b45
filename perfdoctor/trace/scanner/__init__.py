"""The scanner: one pass over JSON events in C, straight from bytes into rows of numbers.

It reads plain events only: strict JSON, each known key once, numbers in their common notation. At any other event it
stops and leaves that event to Python, which also decides what is wrong with it. So irregular events are interpreted in
one place, and where the scanner gives up without need it costs time only.

The C library is in `core`: a few files without dependencies, which know neither Python nor PyTorch. `core/perfdoctor.h`
is all that there is to call, and `layout` says the same in Python. All memory is numpy's. Inside, text is read at most
`layout.PAD` bytes beyond its end, where zeros stand, with which no value, white space or name begins; tables and rows
are written only after a look at their room. The slots of a plan are checked when it is made, the columns of nesting by
`tables.nesting`, the graph of the longest path by the library itself.

Where there is no library for a platform, `core_library` says so, and the reader in Python reads.
"""
