"""The pair smol: a published language model that is fetched, and a vision tower and projector that ship."""
