"""Text → tokens → memory-mapped file → batches."""
