"""Forward passes: decoders, KV cache, padding and CUDA graphs, engines that outlive an answer."""
