"""What the names of kernels say, as data: a file for each family of libraries, and the order of the rules."""
