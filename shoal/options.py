"""Options that several commands have, so that they read and behave the same."""

from __future__ import annotations

import typer

from shoal.failures import SettingsError

LOOKING_ON = "Looking on"

METRICS = typer.Option(
    metavar="HOST:PORT",
    help="Show numbers for Prometheus at http://HOST:PORT/metrics. Whoever reaches the port can read them.",
    show_default=False,
    rich_help_panel=LOOKING_ON,
)
TENSORBOARD = typer.Option(
    metavar="DIR",
    help="Write curves for TensorBoard below DIR (needs shoal\\[tensorboard]).",
    show_default=False,
    rich_help_panel=LOOKING_ON,
)
WANDB = typer.Option(
    metavar="PROJECT",
    help="Send curves to this project of Weights & Biases (needs shoal\\[wandb], and to be logged in there).",
    show_default=False,
    rich_help_panel=LOOKING_ON,
)
LOG_JSON = typer.Option(
    "--log-json", help="Say everything as JSON on standard output, one object per line.", rich_help_panel=LOOKING_ON
)


def check_address(option: str, address: str) -> None:
    """Raise SettingsError when this is not an address; empty is none."""
    from shoal.protocol.channels import split_address
    from shoal.protocol.errors import UnreachableError

    if address:
        try:
            split_address(address)
        except UnreachableError as error:
            raise SettingsError(f"{option}: {error.message}", error.fix) from error
