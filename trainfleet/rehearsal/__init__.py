"""How a stack is tried without a cloud: the real engine over simulated providers. Never imports training."""
