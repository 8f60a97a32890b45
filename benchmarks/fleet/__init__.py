"""Many ranks: processes, memory, and the reduction."""
