"""What the names of kernels say, as data: rules in families, a file for each family of libraries."""
