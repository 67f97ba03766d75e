"""Families of vision-language models, one adapter a file; ``specllava/models/family.py`` lists them."""
