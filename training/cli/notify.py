"""`trainfleet notify`: try the addresses of a recipe's notifications."""

from __future__ import annotations

import typer

from trainfleet.console import EXIT_CODES
from trainfleet.training.cli.options import Overrides, RecipeName, Set

notify = typer.Typer(rich_markup_mode="rich", pretty_exceptions_enable=False)


@notify.command(epilog=EXIT_CODES)
def notify_command(recipe: RecipeName, overrides: Overrides = None, settings: Set = None) -> None:
    """Send a test message to the addresses of a recipe's notifications, from this machine.

    The recipe names variables (notifications.webhook, .slack, .signing_key); their values are never shown.

    [bold]Examples[/]

    trainfleet notify recipes/lm-small.yaml

    trainfleet notify lm-small notifications.slack=SLACK_WEBHOOK_URL
    """
    import os
    import secrets

    from trainfleet.console import out
    from trainfleet.errors import InputError, Problem, TrainfleetError
    from trainfleet.training.notifications import Message, endpoints
    from trainfleet.training.notifications.delivery import deliver
    from trainfleet.training.recipe.load import load_recipe

    loaded = load_recipe(recipe, [*(overrides or ()), *(settings or ())], os.environ)
    if not loaded.notifications.enabled:
        fix = "notifications.slack=SLACK_WEBHOOK_URL or notifications.webhook=RUN_WEBHOOK_URL"
        raise InputError("nobody to notify", [Problem("notifications", "names no variable", fix)])
    found, problems = endpoints(loaded.notifications, os.environ)
    if problems:
        raise InputError("notifications cannot be sent", problems)
    launch = secrets.token_hex(8)
    text = f"{loaded.name}: a test message of `trainfleet notify`"
    message = Message(f"{launch}-test", "test", loaded.name, launch, text)
    for endpoint in found:
        if why := deliver(endpoint, message, waits_s=()):
            problems.append(Problem(endpoint.key, why))
        else:
            out().print(f"{endpoint.key}: delivered", soft_wrap=True, markup=False)
    if problems:
        raise TrainfleetError("a message was not delivered", problems)
