"""Using a trained model: loading, prediction and serving."""
