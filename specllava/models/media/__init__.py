"""Pictures and videos as a target takes them."""
