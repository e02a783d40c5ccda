"""A target and a drafter to try specserve with on a CPU, trained from a made-up language. See README.md."""

from demopair.cache import Pair, built_pair, cache_dir

__all__ = ["Pair", "built_pair", "cache_dir"]
