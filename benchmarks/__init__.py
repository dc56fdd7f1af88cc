"""Benchmarks of servesim: `make bench`, or by hand `python -m benchmarks.table [CASE ...]`.

Every case runs in a process of its own. Times are CPU seconds of the event loop (start-up apart), with the garbage
collector as servesim leaves it; where the kernel lets a process count its own instructions, those are told too, because
a busy machine changes times and not instructions. `python -m benchmarks.check` is what CI asks: whether the quick cases
have become slower than in `results.json`.
"""
