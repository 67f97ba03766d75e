"""Prompts: token ids with image slots, and the features of the pictures in them."""
