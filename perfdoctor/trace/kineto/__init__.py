"""How the events of PyTorch's profiler become a Trace."""
