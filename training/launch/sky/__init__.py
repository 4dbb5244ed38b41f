"""SkyPilot over the platforms' clusters."""
