"""`--on sky`: the recipe as a SkyPilot task on the clusters of one or several platforms, cheapest first."""
