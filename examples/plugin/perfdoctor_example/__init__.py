"""An example of a package that adds an analyzer to perfdoctor."""
