"""What a program registers is captured, and this process is afterwards as it was."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pulumi
import pulumi_aws as aws
import pytest

from trainfleet.rehearsal.simulation.check_harness import capture


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    """An event loop as the one of this thread, which other code has set."""
    made = asyncio.new_event_loop()
    asyncio.set_event_loop(made)
    yield made
    asyncio.set_event_loop(None)
    made.close()


def bucket() -> None:
    aws.s3.Bucket("data", tags={"stack": pulumi.get_stack()})


def failing() -> None:
    bucket()
    raise ValueError("a program's own mistake")


@pytest.mark.parametrize("fails", [False, True])
def test_the_event_loop_and_the_stack_are_as_they_were(loop: asyncio.AbstractEventLoop, fails: bool) -> None:
    before = pulumi.get_project(), pulumi.get_stack()
    if fails:
        with pytest.raises(ValueError, match="a program's own mistake"):
            capture(failing)
    else:
        assert [each.token for each in capture(bucket)] == ["aws:s3/bucket:Bucket"]
    assert asyncio.get_event_loop() is loop
    assert not loop.is_closed()
    assert (pulumi.get_project(), pulumi.get_stack()) == before
    assert loop.run_until_complete(asyncio.sleep(0, "it still runs")) == "it still runs"


def test_a_second_program_does_not_see_the_first_ones_resources() -> None:
    assert len(capture(bucket)) == len(capture(bucket)) == 1
