"""FLOPs and bytes of ops, and what bounds a kernel."""
