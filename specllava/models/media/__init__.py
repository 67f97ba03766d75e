"""Pictures as a target takes them."""
