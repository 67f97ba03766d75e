"""Results of experiments: records made of traces and measurements, and values computed from them. No torch."""
