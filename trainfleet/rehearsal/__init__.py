"""Tests a stack without a cloud account: the real engine with simulated providers. Never imports training."""
