"""How true the simulator is: measured serving cells replayed, screened, and scored."""
