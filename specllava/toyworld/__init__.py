"""The toy world: drawn scenes, the language that describes them, and the recipe of the toy pair."""
