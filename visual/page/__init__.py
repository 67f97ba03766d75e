"""The live page: Gradio around the player. The only room that imports gradio."""
