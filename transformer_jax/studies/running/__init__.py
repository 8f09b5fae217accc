"""Training the cells of a study: plan, costs, batches of runs, jobs. Only this part needs jax."""
