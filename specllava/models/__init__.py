"""Loading and adapting checkpoints: artefacts on disk, vision features, pairs and presets."""
