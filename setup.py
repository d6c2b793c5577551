"""What is compiled: the Cython kernels, listed one by one, and the modules in compiled.txt.

Everything else about the package is in pyproject.toml.

What was compiled is kept in a cache of this machine (``BRAIDMQ_BUILD_CACHE``, normally
``~/.cache/braidmq/build``), under a hash of everything that went into it: another clone of the same
sources compiles nothing, and a file that is out of date can't be taken for a new one.
"""

import ast
import hashlib
import io
import os
import shutil
import subprocess
import sys
import sysconfig
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stdout
from functools import cache
from importlib.metadata import version
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

RECORD = "src/braidmq/record"
SOURCES = Path("src")
GROUP = "braidmq"
LIBRARY = f"{GROUP}__mypyc"
"""The library that mypyc puts all modules into; each has an empty one of its own beside it."""

CORES = os.cpu_count() or 1
KEPT_S = 30 * 24 * 3600
GENERATED = Path("build/generated")
"""C that Cython and mypyc write: never beside the sources, where a package would take it along."""

KERNELS = {
    "braidmq.record.crc32c": [f"{RECORD}/crc32c.h"],
    "braidmq.record.batch": [
        f"{RECORD}/crc32c.h",
        f"{RECORD}/record_run.h",
        f"{RECORD}/record_scan.h",
    ],
    "braidmq.record.columns": [],
    "braidmq.storage.shared_body": [f"{RECORD}/crc32c.h"],
    "braidmq.security.token_bucket": [],
    "braidmq.record.key_hash": [],
    "braidmq.storage.key_filter": [],
    "braidmq.storage.journal_entry": [f"{RECORD}/crc32c.h"],
    "braidmq.record.open_record": [f"{RECORD}/crc32c.h"],
    "braidmq.record.offset_set": [],
    "braidmq.storage.copying": [],
    "braidmq.storage.writing": [],
    "braidmq.client.awaitables": [],
    "braidmq.wire.header_lookup": [],
    "braidmq.wire.header_columns": [],
    "braidmq.wire.record_rows": [],
    "braidmq.loadgen.arrivals": [],
    "braidmq.wire.deaths": [],
    "braidmq.wire.amqp.client": [],
    "braidmq.wire.amqp.scan": [],
    "braidmq.wire.amqp.render": [],
    "braidmq.loadgen.amqp_load": [],
    "braidmq.wire.mqtt.publish": [],
    "braidmq.wire.mqtt.scan": [],
    "braidmq.wire.mqtt.render": [],
    "braidmq.loadgen.mqtt_load": [],
    "braidmq.engine.compaction": [],
    "braidmq.engine.entries": [],
    "braidmq.engine.delivery": [],
    "braidmq.engine.key_queues": [],
    "braidmq.engine.lane_table": [],
    "braidmq.engine.partitioner": [],
    "braidmq.engine.timer_wheel": [],
    "braidmq.engine.record_times": [],
    "braidmq.engine.routing.rendezvous": [],
    "braidmq.engine.routing.topic_trie": [],
    "braidmq.net.input_budget": [],
    "braidmq.net.tcp": [],
    "braidmq.net.tls": [],
    "braidmq.runtime.turns": [],
    "braidmq.runtime.meter": [],
    "braidmq.gateways.mqtt.counters": [],
    "braidmq.gateways.mqtt.fast_path": [],
}

SHARED = "braidmq.cython_shared"
"""What Cython needs for views of memory: once for all kernels, where each would compile its own."""

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
# A C file for each module compiles on all cores; one for all takes as long, on a single one. With
# -O2 it is half as long again for no gain that could be measured (docs/adr/0008).
MYPYC_SETTINGS = {"opt_level": "1", "debug_level": "0", "multi_file": True}
# Calls between these files need no detour through the table of exported names.
MYPYC_FLAGS = ["-fvisibility=hidden"]


def compiled_modules():
    if os.environ.get("BRAIDMQ_COMPILE") == "0":
        return []
    lines = Path("compiled.txt").read_text().splitlines()
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
            include_dirs=[RECORD],
            extra_compile_args=FLAGS,
        )
        for name, headers in KERNELS.items()
    ]
    shared = f"src/{SHARED.replace('.', '/')}.c"  # cythonize writes it, under GENERATED
    kernels.append(Extension(SHARED, [shared], extra_compile_args=FLAGS))
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


def key_of(extension):
    return kernel_key(extension) if extension.sources else library_key()


def kernel_key(extension):
    """Declarations are few and seldom changed: each kernel may depend on all of them."""
    shared = [str(path) for end in ("pxd", "h") for path in SOURCES.rglob(f"*.{end}")]
    words = [*toolchain(), version("Cython"), repr(DIRECTIVES), repr(FLAGS), extension.name, SHARED]
    own = [] if extension.name == SHARED else extension.sources
    return digest_of(words, [*own, *shared])


@cache
def library_key():
    how = [repr(each) for each in (MYPYC_OPTIONS, MYPYC_SETTINGS, MYPYC_FLAGS)]
    modules = compiled_modules()
    return digest_of([*toolchain(), version("mypy"), *how, *modules], files_behind(modules))


def object_key(source, options):
    """Of one C file: a change to one of many modules compiles that module's file and links."""
    headers = [*SOURCES.rglob("*.h"), *Path(source).parent.glob("*.h")]
    how = sorted((name, str(value)) for name, value in options.items())
    words = [*toolchain(), version("Cython"), version("mypy"), repr(how)]
    return digest_of(words, [source, *map(str, headers)])


def make_object(made, key, compile_it):
    """Unless it was made from just this."""
    key_file = Path(f"{made}.key")
    if Path(made).exists() and key_file.exists() and key_file.read_text() == key:
        return
    key_file.unlink(missing_ok=True)  # before: what is left of a broken run belongs to no key
    compile_it()
    key_file.write_text(key)


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


def remove_strays(declared):
    """Of the libraries beside the sources, what is not built any more.

    Python imports a library before the module beside it: one that compiled.txt lists no longer
    would go on running as it was on the day it was compiled.
    """
    for found in SOURCES.absolute().rglob(f"*{sysconfig.get_config_var('EXT_SUFFIX')}"):
        if found not in declared:
            found.unlink()


def described(kernels, modules):
    parts = [(len(kernels), "kernels"), (len(set(modules) - {LIBRARY}), "Python modules")]
    return " and ".join(f"{count} {what}" for count, what in parts if count)


def translate_kernels(kernels):
    from Cython.Build import cythonize

    return cythonize(
        kernels,
        nthreads=CORES,
        compiler_directives=DIRECTIVES,
        build_dir=str(GENERATED),
        shared_utility_qualified_name=SHARED,
        quiet=True,
    )


def translate_modules(names):
    from mypyc.build import mypycify

    remarks = io.StringIO()  # on how it compiles what is right; worth reading when it is not
    try:
        with redirect_stdout(remarks):
            found = mypycify(
                MYPYC_OPTIONS + compiled_modules(),
                group_name=GROUP,
                target_dir=str(GENERATED),
                **MYPYC_SETTINGS,
            )
    except SystemExit:
        print(remarks.getvalue())
        raise
    for each in found:
        each.extra_compile_args += MYPYC_FLAGS
    return [each for each in found if each.name in names]


class BuildExtensions(build_ext):
    """Compiles what the cache does not have, and keeps it there."""

    def run(self):
        super().run()
        if self.inplace:
            remove_strays({Path(self.get_ext_fullpath(each.name)) for each in self.extensions})

    def build_extensions(self):
        missing = [each for each in self.extensions if not self._take_from_cache(each)]
        if missing:
            self._build(missing)
        for each in missing:
            self._put_into_cache(each)
        forget_unused()

    def _build(self, missing):
        kernels = [each for each in missing if each.sources]
        modules = {each.name for each in missing} - {each.name for each in kernels}
        print(f"compiling {described(kernels, modules)} on {CORES} cores …", flush=True)
        self.force = True  # by content it is new, whatever the dates of files say
        with ThreadPoolExecutor(CORES) as compilers, ThreadPoolExecutor(2 * CORES) as libraries:
            self._compile_in(compilers)
            building = []
            # mypyc translates on one core; the others compile kernels meanwhile.
            for translate, wanted in ((translate_kernels, kernels), (translate_modules, modules)):
                for each in translate(wanted) if wanted else ():
                    each._needs_stub = False
                    building.append(libraries.submit(self.build_extension, each))
            for each in building:
                each.result()

    def _compile_in(self, compilers):
        """Each file by itself, those of one library too; the largest first."""
        compile_all = self.compiler.compile

        def compile_one(source, output_dir, **options):
            [made] = self.compiler.object_filenames([source], output_dir=output_dir)
            key = object_key(source, options)
            make_object(made, key, lambda: compile_all([source], output_dir, **options))
            return made

        def compile_each(sources, **options):
            largest_first = sorted(sources, key=lambda source: -Path(source).stat().st_size)
            waiting = [compilers.submit(compile_one, each, **options) for each in largest_first]
            return [each.result() for each in waiting]

        self.compiler.compile = compile_each

    def _place(self, extension):
        file = Path(self.get_ext_fullpath(extension.name))
        return file, cache_directory() / f"{extension.name}-{key_of(extension)}.so"

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


def main():
    # An installer asks for names and versions twice before it builds, and that needs no compiler.
    asked_for_metadata = {"egg_info", "dist_info"} & set(sys.argv)
    setup(
        cmdclass={"build_ext": BuildExtensions},
        options={"build_ext": {"parallel": CORES}},
        ext_modules=[] if asked_for_metadata else declared_extensions(),
    )


if __name__ == "__main__":
    main()
