"""Loading a pair: options, presets, memory, checks that target and draft fit each other."""
