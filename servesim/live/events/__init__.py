"""Events of engines over ZMQ, in their own wire formats: what prefix caches hold, and what each step computes."""
