"""The bootstrap of an Azure subscription."""
