"""The command line: one file per command, thin; paths, flags and exit codes live here and nowhere else."""
