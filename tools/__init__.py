"""Scripts of the checkout: set-up, the demo, checks, and generated pages and pictures. Never installed."""
