"""What a release of vLLM accepts and honours: methods, arguments, tables, in and out. Pure.

Knowledge as data, read against vLLM's source; no engine is asked. Imports ``contract`` alone.
"""
