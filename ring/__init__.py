"""ring: the pure core. No I/O, no clock, no randomness of its own: time and seeds come in as arguments."""
