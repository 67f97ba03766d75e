"""Families of vision-language models, one adapter a file; ``specllava/models/families/family.py`` lists them."""
