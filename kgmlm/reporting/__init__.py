"""A run as one page: what is told, drawn and written."""
