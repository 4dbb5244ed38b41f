"""The versioned contract between a platform and its launchers. No Pulumi import."""
