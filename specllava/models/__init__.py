"""Models: files of checkpoints, media, drafts, families of targets, loading."""
