"""The scanner: one compiled pass over JSON events, straight from bytes into rows of numbers.

It reads plain events only: strict JSON, each known key once, numbers in their common notation. At any other event it
stops and leaves that event to Python, which also decides what is wrong with it. So irregular events are interpreted in
one place, and where the scanner gives up without need it costs time only.

The compiled code is unsafe in that text and tables are addresses: numba counts references of arrays with every call,
which costs more than the work. Only `event_rows.enter` is called from outside, and checks its control block. Inside,
text is read at most `layout.PAD` bytes beyond its end, where zeros stand, with which no value, white space or name
begins. Memory is written by `intern_words.put`, `event_rows._write`, `nest_events.nest` and the functions of
`store_values` alone. The first two compare with the room first. The slots of `store_values` are checked when a plan is
made, and the columns of `nest_events` by `tables.nesting`.

A function that reads text returns the address behind what it read, or a negative number: minus the address of what it
cannot read, or one of the small codes of `layout`.

The rest of the package calls `scanner_code`: it keeps the machine code on disk, so that numba is imported once on a
machine and not in every run.
"""
