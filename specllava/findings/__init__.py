"""What experiments found: records made of traces and readings, and what follows from them by arithmetic. No torch."""
