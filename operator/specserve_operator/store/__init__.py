"""The cluster at hand: the API server's client, and a store that mirrors what the operator decides upon."""
