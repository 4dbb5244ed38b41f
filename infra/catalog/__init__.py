"""The machine catalogue and list prices, each with date and source, and the cost of a spec."""
