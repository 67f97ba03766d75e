"""Families of vision-language models, one adapter each; ``specllava/models/families/family.py`` lists them."""
