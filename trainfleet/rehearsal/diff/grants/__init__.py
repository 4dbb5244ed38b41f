"""What the resources of each cloud allow, as grants that can be compared."""
