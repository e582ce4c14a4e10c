"""Values on accelerators where there are some: gloo carries them for several ranks, NCCL for one rank a device."""

from __future__ import annotations

import pytest

from tests.devices import DEVICES
from tests.on_device import in_processes, setups


@pytest.mark.parametrize(("backend", "device", "size"), [setup for device in DEVICES for setup in setups(device)])
def test_every_backend_and_device(backend: str, device: str, size: int) -> None:
    in_processes(backend, device, size)
