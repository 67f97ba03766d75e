"""Training: what drafts learn from, one stage and one loop on accelerate, and the command around them."""
