"""Parts of a step: engine, KV cache, attention masks, prompts, detokenizer and clock."""
