"""A dynamic provider that would call an API: it leaves a file if anybody executes it."""

import os
from pathlib import Path

import pulumi
from pulumi import dynamic


class Api(dynamic.ResourceProvider):
    def create(self, props):
        Path(os.environ["TMPDIR"], "executed").touch()
        return dynamic.CreateResult("1", {**props, "url": "https://api.example.org/1"})


class Entry(dynamic.Resource):
    title: pulumi.Output[str]
    url: pulumi.Output[str]

    def __init__(self, name, title, opts=None):
        super().__init__(Api(), name, {"title": title, "url": None}, opts)


entry = Entry("entry", "first")
child = Entry("child", entry.url.apply(lambda url: f"below {url}"))
pulumi.export("title", entry.title)
pulumi.export("url", entry.url)
pulumi.export("child", child.title)
pulumi.export("executed", Path(os.environ["TMPDIR"], "executed").exists())
