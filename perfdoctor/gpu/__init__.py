"""What is known about hardware and kernels."""
