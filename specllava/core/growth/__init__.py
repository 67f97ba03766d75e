"""Growth of a draft tree: the level-by-level builder, the tree rules and static shapes. No torch."""
