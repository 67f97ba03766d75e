"""Distillation of drafts: training data, one stage and one loop on accelerate, and the command around them."""
