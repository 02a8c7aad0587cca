"""Benches: what swarmd claims about itself, measured."""
