"""A run as a service: a JSON API whose concurrent requests share forward passes."""
