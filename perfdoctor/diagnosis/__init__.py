"""From a Trace to a Report: account, analyzers, gains, ranking."""
