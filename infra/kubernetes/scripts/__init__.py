"""Programs that run in the cluster. They import only the standard library."""
