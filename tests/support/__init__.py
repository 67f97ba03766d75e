"""Models, prompts, strategies and stand-ins that tests share."""
