"""Verification of drafted tokens: greedy and by sampling, and the target's view of a tree."""
