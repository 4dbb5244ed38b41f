"""Models of packages that are not clouds and whose outputs programs use: random, tls, time, cloudinit ..."""

from __future__ import annotations

from trainfleet.rehearsal.simulation.cloud_model import CloudModel
from trainfleet.rehearsal.simulation.other_packages.awsx import AwsxModel
from trainfleet.rehearsal.simulation.other_packages.azuread import AzureAdModel
from trainfleet.rehearsal.simulation.other_packages.cloudinit import CloudInitModel
from trainfleet.rehearsal.simulation.other_packages.commands import CommandModel, DockerModel
from trainfleet.rehearsal.simulation.other_packages.random_values import RandomModel
from trainfleet.rehearsal.simulation.other_packages.timestamps import TimeModel
from trainfleet.rehearsal.simulation.other_packages.tls import TlsModel

OTHER_MODELS: dict[str, CloudModel] = {
    "awsx": AwsxModel(),
    "azuread": AzureAdModel(),
    "cloudinit": CloudInitModel(),
    "command": CommandModel(),
    "docker": DockerModel(),
    "random": RandomModel(),
    "time": TimeModel(),
    "tls": TlsModel(),
}
