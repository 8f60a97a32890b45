"""The built-in analyzers, one file a diagnosis; installed as perfdoctor.analyzers."""
