"""The trainer: step loop, state, guards, metrics, optimizer, controllers and strategies."""
