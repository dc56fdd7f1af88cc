"""Benchmarks of servesim: `make bench`, or by hand `python -m benchmarks.table [CASE ...]`.

Every case runs in a process of its own. Times are CPU seconds of the event loop (start-up apart), with the garbage
collector as servesim leaves it; where the kernel lets a process count its own instructions, those are told too, because
a busy machine changes times and not instructions. What CI asks repeats on any machine: whether the quick cases make
more calls than `calls.json` says (`python -m benchmarks.calls`), and at length, whether they take more instructions
under valgrind (`python -m benchmarks.valgrind`).
"""
