"""The annotated trace, for Perfetto and chrome://tracing: the events of one rank or of several, and the report."""
