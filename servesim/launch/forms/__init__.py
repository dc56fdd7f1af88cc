"""Forms of deployments, one module each (servesim.contracts.form)."""
