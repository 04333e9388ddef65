"""A run for others: packs, ONNX Runtime, what it is in one screen."""
