"""How an export of Nsight Systems becomes a Trace."""
