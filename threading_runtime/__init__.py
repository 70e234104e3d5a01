"""Who runs what, when and on which stream: worker threads, shared weights, CUDA streams, the GIL."""
