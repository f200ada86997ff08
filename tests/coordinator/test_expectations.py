"""What a round should cost knows every codec that a run spec may name."""

from __future__ import annotations

import typing

import pytest

from shoal.compression.codec import codec
from shoal.coordinator.expectations import bytes_per_value
from shoal.protocol.spec import CodecName


@pytest.mark.parametrize("name", typing.get_args(CodecName))
def test_bytes_per_value_are_those_of_the_codec(name: str) -> None:
    values = 64 * 100
    assert bytes_per_value(name, 64) * values == codec(name, 64).encoded_size((values,))
