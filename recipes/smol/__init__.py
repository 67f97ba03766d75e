"""The pair smol: a published language model that is fetched, and a vision tower and projector that ship."""

from typing import Literal

SourceName = Literal["auto", "hub", "wheel"]  # of the language model; no torch here, since the command line names them
