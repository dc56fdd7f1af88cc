"""Dynamo's simulator (ai-dynamo-runtime 1.6.1) replayed by servesim's own parts, to compare both."""
