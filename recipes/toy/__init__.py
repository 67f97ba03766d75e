"""The toy world: drawn scenes, their descriptions in English, and the recipe of the toy pair."""
