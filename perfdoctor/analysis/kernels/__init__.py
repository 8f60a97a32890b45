"""What each kernel did: FLOPs and bytes, Tensor Cores, memory traffic, bounds."""
