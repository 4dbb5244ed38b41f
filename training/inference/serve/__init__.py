"""Serves a trained model over HTTP: `app` starts Ray Serve, `request_handler` handles one replica's requests,
`batcher` batches them, `metrics` counts them.
"""
