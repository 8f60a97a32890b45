"""How perfdoctor is built: setuptools makes the package, and this adds the C library that it is faster with.

`pip` and `build` call the hooks (`hooks.py`, PEP 517 and 660). Nothing here is installed.
"""
