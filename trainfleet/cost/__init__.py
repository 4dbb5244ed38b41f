"""What a platform costs: the spec's estimate, the plan's, and the cloud's bill as a FOCUS export."""
