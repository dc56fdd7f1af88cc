"""What a run leaves behind: steps, deliveries and requests as rows of integers."""
