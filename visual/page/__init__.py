"""The page: cards, runs, notices, serving. The only room that knows gradio; no torch."""
