"""Plotly figures and their layout. No gradio, no torch."""
