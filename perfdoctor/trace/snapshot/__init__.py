"""Snapshots of PyTorch's CUDA allocator become a Trace with memory events, and nothing in the file is executed."""
