"""A trained model behind HTTP: `app` starts Ray Serve, `desk` takes one replica's requests, `batcher` joins
them, `gauges` counts.
"""
