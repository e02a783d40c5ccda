"""What the two halves of specserve say to each other: request, profile, key, message, and why there is no result.

Pure: pydantic and the standard library. The operator validates with these very models, so the two sides cannot drift
apart. Imports no other room.
"""
