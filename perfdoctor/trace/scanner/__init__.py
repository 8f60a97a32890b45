"""The compiled half of the scanner: one pass over JSON events, straight from bytes into rows of numbers.

It reads plain events only: strict JSON, each known key once, numbers in their common notation. At anything else it
stops before the event and leaves it to Python, which also decides what is wrong with it. So nothing odd has a second
meaning here, and a wrong guess can cost time only.

What is unsafe is that text and tables are addresses: numba counts references of arrays with every call, which costs
more than the work. `events.enter` alone is called from outside, and checks its control block. Inside, text is read at
most `layout.PAD` bytes beyond its end, where zeros stand, which no value, white space or name begins with; memory is
written by `words.put`, `events._write`, `nest`, and what fills a slot of the record (`values`) alone. The first two
compare with the room first; the slots are checked when a plan is made, and the columns of `nest` by `nesting`.

A function that reads text returns the address after what it read, or a negative number: minus the address of what it
cannot read, or one of the small codes of `layout`.

`native` is what the rest of the package calls: it keeps the machine code on disk, so that numba is imported once a
machine and not once a run.
"""
