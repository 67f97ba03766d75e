"""What the page shows: colours, tree layout, figures, words, the player. Knows traces, never torch."""
