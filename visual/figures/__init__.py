"""Plotly figures and where things stand in them. No gradio, no torch."""
