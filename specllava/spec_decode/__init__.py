"""Speculative decoding: drafters, tree growth, verification, the decode loop."""
