"""Nsight Systems: an SQLite export becomes a Trace."""
