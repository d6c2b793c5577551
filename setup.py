"""What is compiled: the Cython kernels, listed one by one, and the modules in compiled.txt.

Everything else about the package is in pyproject.toml.

What was compiled is kept in a cache of this machine (``BRAIDMQ_BUILD_CACHE``, normally
``~/.cache/braidmq/build``), under a hash of everything that went into it: another clone of the same
sources compiles nothing, and a file that is out of date can't be taken for a new one.
"""

import ast
import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
import time
from functools import cache
from importlib.metadata import version
from pathlib import Path

from Cython.Build import cythonize
from mypyc.build import mypycify
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

STORAGE = "src/braidmq/storage"
SOURCES = Path("src")
GROUP = "braidmq"
LIBRARY = f"{GROUP}__mypyc"
"""The library that mypyc puts all modules into; each has an empty one of its own beside it."""

KEPT_S = 30 * 24 * 3600

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
    "braidmq.storage.open_record": [f"{STORAGE}/crc32c.h"],
    "braidmq.storage.offset_set": [],
    "braidmq.storage.copying": [],
    "braidmq.storage.writing": [],
    "braidmq.client.awaitables": [],
    "braidmq.wire.header_columns": [],
    "braidmq.wire.record_rows": [],
    "braidmq.wire.arrivals": [],
    "braidmq.wire.deaths": [],
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
    "braidmq.gateways.intake": [],
    "braidmq.gateways.tcp": [],
    "braidmq.gateways.turns": [],
    "braidmq.gateways.mqtt.counters": [],
    "braidmq.gateways.mqtt.express": [],
}

# Warnings are about C that Cython wrote; debug information takes a third of the time.
FLAGS = ["-O3", "-g0", "-fno-strict-aliasing", "-w"]

DIRECTIVES = {
    "language_level": 3,
    "boundscheck": False,
    "wraparound": False,
    "cdivision": True,
    "initializedcheck": False,
    "embedsignature": True,
    "freethreading_compatible": False,
}

# Types were checked before (make lint); here missing stubs must not stop an installation.
MYPYC_OPTIONS = ["--config-file=", "--ignore-missing-imports", "--follow-imports=silent"]
MYPYC_LEVELS = {"opt_level": "2", "debug_level": "0"}


def compiled_modules():
    if os.environ.get("BRAIDMQ_COMPILE") == "0":
        return []
    lines = Path(__file__).with_name("compiled.txt").read_text().splitlines()
    return [line for line in lines if not line.startswith("#")]


def module_name(path):
    return path.removeprefix("src/").removesuffix(".py").replace("/", ".")


def declared_extensions():
    """By name, before anything is translated to C: what is in the cache never is."""
    kernels = [
        Extension(
            name,
            [f"src/{name.replace('.', '/')}.pyx"],
            depends=headers,
            include_dirs=[STORAGE],
            extra_compile_args=FLAGS,
        )
        for name, headers in KERNELS.items()
    ]
    modules = compiled_modules()
    if not modules:
        return kernels
    return [Extension(name, []) for name in [LIBRARY, *map(module_name, modules)]] + kernels


# --- the cache ---


def cache_directory():
    given = os.environ.get("BRAIDMQ_BUILD_CACHE")
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(given) if given else home / "braidmq" / "build"


def digest_of(words, paths):
    digest = hashlib.sha256("\n".join(words).encode())
    for path in sorted(paths):
        digest.update(f"\n{path}\n".encode())
        digest.update(Path(path).read_bytes())
    return digest.hexdigest()[:32]


@cache
def toolchain():
    compiler = sysconfig.get_config_var("CC") or "cc"
    said = subprocess.run([*compiler.split(), "--version"], capture_output=True, text=True)
    names = ("SOABI", "CFLAGS", "LDFLAGS")
    settings = [str(sysconfig.get_config_var(name)) for name in names]
    return [sys.version, said.stdout, *settings, os.environ.get("CFLAGS", "")]


def kernel_key(extension):
    """Declarations are few and seldom changed: each kernel may depend on all of them."""
    shared = [str(path) for end in ("pxd", "h") for path in SOURCES.rglob(f"*.{end}")]
    words = [*toolchain(), version("Cython"), repr(DIRECTIVES), repr(FLAGS), extension.name]
    return digest_of(words, [*extension.sources, *shared])


@cache
def library_key():
    words = [*toolchain(), version("mypy"), repr(MYPYC_OPTIONS), repr(MYPYC_LEVELS)]
    modules = compiled_modules()
    return digest_of([*words, *modules], files_behind(modules))


def files_behind(modules):
    """The modules and what they import of ours: types of the others decide what mypyc makes."""
    found, waiting = set(), list(modules)
    while waiting:
        path = waiting.pop()
        if path not in found:
            found.add(path)
            waiting += imported_files(path)
    return found


def imported_files(path):
    for node in ast.walk(ast.parse(Path(path).read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        else:
            continue
        for name in names:
            base = SOURCES / name.replace(".", "/")
            places = (base.with_suffix(".pyi"), base.with_suffix(".py"), base / "__init__.py")
            yield from (str(place) for place in places if place.is_file())


def forget_unused():
    """Of the cache, what no build took for a month."""
    for kept in cache_directory().glob("*.so"):
        if time.time() - kept.stat().st_mtime > KEPT_S:
            kept.unlink(missing_ok=True)


class BuildExtensions(build_ext):
    """Compiles what the cache does not have, and keeps it there."""

    def build_extensions(self):
        missing = [each for each in self.extensions if not self._take_from_cache(each)]
        kernels = [each for each in missing if each.sources]
        modules = {each.name for each in missing} - {each.name for each in kernels}
        declared, self.extensions = self.extensions, self._translated(kernels, modules)
        self.force = True  # by content it is new, whatever the dates of files say
        super().build_extensions()
        self.extensions = declared
        for each in missing:
            self._put_into_cache(each)
        forget_unused()

    def _translated(self, kernels, modules):
        """The large library first: the other cores compile the rest meanwhile."""
        translated = []
        if modules:
            all_of_it = mypycify(
                MYPYC_OPTIONS + compiled_modules(), group_name=GROUP, **MYPYC_LEVELS
            )
            translated = sorted(
                (each for each in all_of_it if each.name in modules),
                key=lambda each: each.name != LIBRARY,
            )
        if kernels:
            translated += cythonize(
                kernels, nthreads=os.cpu_count() or 1, compiler_directives=DIRECTIVES
            )
        for each in translated:
            each._needs_stub = False
        return translated

    def _place(self, extension):
        file = Path(self.get_ext_fullpath(extension.name))
        key = kernel_key(extension) if extension.sources else library_key()
        return file, cache_directory() / f"{extension.name}-{key}.so"

    def _take_from_cache(self, extension):
        file, kept = self._place(extension)
        if not kept.exists():
            return False
        file.parent.mkdir(parents=True, exist_ok=True)
        file.unlink(missing_ok=True)  # a process that has it open keeps the old one
        shutil.copyfile(kept, file)
        os.utime(kept)
        return True

    def _put_into_cache(self, extension):
        file, kept = self._place(extension)
        try:
            kept.parent.mkdir(parents=True, exist_ok=True)
            unfinished = kept.with_suffix(f".{os.getpid()}")
            shutil.copyfile(file, unfinished)
            unfinished.rename(kept)
        except OSError as error:
            print(f"not kept in the build cache: {error}", file=sys.stderr)


# An installer asks for names and versions twice before it builds, and that needs no compiler.
asked_for_metadata = {"egg_info", "dist_info"} & set(sys.argv)

setup(
    cmdclass={"build_ext": BuildExtensions},
    options={"build_ext": {"parallel": os.cpu_count() or 1}},
    ext_modules=[] if asked_for_metadata else declared_extensions(),
)
