"""An example of a package that adds an analyzer and a change to perfdoctor."""
