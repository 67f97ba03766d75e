"""The page in three rooms: figures, the player that is made of them, and the page around it. No torch."""
