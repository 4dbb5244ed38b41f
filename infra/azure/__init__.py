"""A platform on Azure."""
