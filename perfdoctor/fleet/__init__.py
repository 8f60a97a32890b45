"""Many ranks: finding their files."""
