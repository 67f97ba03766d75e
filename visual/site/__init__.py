"""The static edition of the page: plain files that any web server serves."""
