"""The specserve operator: measures, keeps and serves K tables for vLLM's Dynamic Speculative Decoding."""
