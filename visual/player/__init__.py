"""What the player shows of a race: frames, sentences, race files, saved pages. No gradio, no torch."""
