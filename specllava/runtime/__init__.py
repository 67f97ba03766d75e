"""What runs in a step: engine, KV cache, attention masks, prompts, detokenizer and clock."""
