"""``import braidmq`` is light, and has what it says."""

import subprocess
import sys
from pathlib import Path

import braidmq
from braidmq import client


def test_the_package_has_the_names_of_the_client():
    assert set(braidmq.__all__) == set(client.__all__)
    assert all(getattr(braidmq, name) is getattr(client, name) for name in braidmq.__all__)
    assert set(braidmq.__all__) <= set(dir(braidmq))


def test_other_names_are_none():
    assert not hasattr(braidmq, "nothing")


def test_importing_it_loads_no_event_loop():
    code = "import braidmq, sys; sys.exit('asyncio' in sys.modules or 'msgspec' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_type_checker_sees_the_names():
    stub = Path(client.__file__).parent.with_name("__init__.pyi").read_text()
    named = {line.split(" as ")[0].strip() for line in stub.splitlines() if " as " in line}
    assert named == set(client.__all__)
