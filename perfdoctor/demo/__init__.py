"""The trace that `perfdoctor demo` analyses: demo.json.gz, which sample_traces/generate.py writes."""
