"""What is compiled: the Cython kernels, listed one by one, and the modules in compiled.txt.

Everything else about the package is in pyproject.toml.
"""

import os
import sys
from pathlib import Path

from Cython.Build import cythonize
from mypyc.build import mypycify
from setuptools import Extension, setup

STORAGE = "src/braidmq/storage"

KERNELS = {
    "braidmq.storage.crc32c": [f"{STORAGE}/crc32c.h"],
    "braidmq.storage.record": [
        f"{STORAGE}/crc32c.h",
        f"{STORAGE}/record_run.h",
        f"{STORAGE}/record_scan.h",
    ],
    "braidmq.storage.record_columns": [],
    "braidmq.storage.shared_body": [f"{STORAGE}/crc32c.h"],
    "braidmq.storage.key_hash": [],
    "braidmq.storage.key_filter": [],
    "braidmq.storage.journal_entry": [f"{STORAGE}/crc32c.h"],
    "braidmq.storage.offset_set": [],
    "braidmq.storage.copying": [],
    "braidmq.storage.writing": [],
    "braidmq.client.awaitables": [],
    "braidmq.wire.header_columns": [],
    "braidmq.wire.record_rows": [],
    "braidmq.wire.arrivals": [],
    "braidmq.wire.amqp.client": [],
    "braidmq.wire.amqp.scan": [],
    "braidmq.wire.amqp.render": [],
    "braidmq.wire.amqp.load": [],
    "braidmq.wire.mqtt.publish": [],
    "braidmq.wire.mqtt.scan": [],
    "braidmq.wire.mqtt.render": [],
    "braidmq.wire.mqtt.load": [],
    "braidmq.engine.compaction": [],
    "braidmq.engine.entries": [],
    "braidmq.engine.delivery": [],
    "braidmq.engine.partitioner": [],
    "braidmq.engine.timer_wheel": [],
    "braidmq.engine.timing": [],
    "braidmq.engine.routing.rendezvous": [],
    "braidmq.engine.routing.topic_trie": [],
    "braidmq.gateways.tcp": [],
    "braidmq.gateways.turns": [],
    "braidmq.gateways.mqtt.counters": [],
    "braidmq.gateways.mqtt.express": [],
}

extensions = [
    Extension(
        name,
        [f"src/{name.replace('.', '/')}.pyx"],
        depends=headers,
        include_dirs=[STORAGE],
        extra_compile_args=["-O3", "-fno-strict-aliasing", "-Wno-unused-function"],
    )
    for name, headers in KERNELS.items()
]


def compiled_modules():
    if os.environ.get("BRAIDMQ_COMPILE") == "0":
        return []
    lines = Path(__file__).with_name("compiled.txt").read_text().splitlines()
    modules = [line for line in lines if not line.startswith("#")]
    # Types were checked before (make lint); here missing stubs must not stop an installation.
    options = ["--config-file=", "--ignore-missing-imports", "--follow-imports=silent"]
    return mypycify(options + modules, group_name="braidmq", opt_level="2", debug_level="0")


def kernels():
    return cythonize(
        extensions,
        nthreads=os.cpu_count() or 1,
        compiler_directives={
            "language_level": 3,
            "boundscheck": False,
            "wraparound": False,
            "cdivision": True,
            "initializedcheck": False,
            "embedsignature": True,
            "freethreading_compatible": False,
        },
    )


# An installer asks for names and versions twice before it builds, and that needs no compiler.
asked_for_metadata = {"egg_info", "dist_info"} & set(sys.argv)

setup(
    options={"build_ext": {"parallel": os.cpu_count() or 1}},
    ext_modules=[] if asked_for_metadata else compiled_modules() + kernels(),
)
