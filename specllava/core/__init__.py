"""Nouns of the package: options, draft trees and their growth, traces, figures of traces. No torch."""
