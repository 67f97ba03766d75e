"""Growth of a draft tree: the level-by-level builder, the tree rules, static shapes and the cost model. No torch."""
