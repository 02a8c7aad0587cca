"""registry: signed documents and the keys that may sign them."""
