"""Queries as text, and the masked language model that reads them."""
