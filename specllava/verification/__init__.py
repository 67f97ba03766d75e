"""Which drafted tokens the target accepts: greedy and sampling verification, and the target's view of a tree."""
