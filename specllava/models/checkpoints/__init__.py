"""Files of a checkpoint and what is common to all language models: decoder layers, tokens, chat templates."""
