"""Draft models: formats, configurations, layers, compressors of picture slots."""
