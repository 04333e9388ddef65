"""A run over HTTP, and in a browser."""
