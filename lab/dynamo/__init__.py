"""Replay of Dynamo's simulator (ai-dynamo-runtime 1.6.1) with servesim's own parts, to compare the two."""
