"""The clinic: programs with one planted fault and healthy ones; what perfdoctor says of each, what the fix gave."""
