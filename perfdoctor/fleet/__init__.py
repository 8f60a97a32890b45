"""Many ranks: find their files, analyse each in a process or on a cluster, and reduce the summaries to one report."""
