"""Messages of a run to a webhook or to Slack: that it starts, fails, is preempted, ends, or nears its limits.

The run sends them itself, because it outlives its launcher. What the run cannot send, its submitter or its
launcher sends. Nothing here ends or delays a step of the run.
"""

from trainfleet.training.notifications.delivery import Endpoint, endpoints
from trainfleet.training.notifications.messages import Message
from trainfleet.training.notifications.sender import Notifier, notify_failure

__all__ = ["Endpoint", "Message", "Notifier", "endpoints", "notify_failure"]
