"""Writing and syncing in one step, here or in a thread of its own.

A thread that lets go of the interpreter's lock for each system call has to get it back after each,
and waits for it longer than a fast disk takes. Here it is let go of once, and ``WritingThread``
never takes it: it is given addresses, and says that it is done through a file that an event loop
watches.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.errno cimport EINTR, EIO, ETIMEDOUT, errno
from libc.stdint cimport int64_t, uint64_t
from libc.stdlib cimport free, malloc
from posix.time cimport CLOCK_MONOTONIC, CLOCK_REALTIME, clock_gettime, timespec

import os
import threading

cdef extern from "<sys/uio.h>" nogil:
    cdef struct iovec:
        void *iov_base
        size_t iov_len
    Py_ssize_t pwritev(int fd, const iovec *pieces, int count, int64_t position)

cdef extern from "<unistd.h>" nogil:
    int fdatasync(int fd)
    Py_ssize_t write_file "write" (int fd, const void *data, size_t size)
    Py_ssize_t read_file "read" (int fd, void *data, size_t size)

cdef extern from "<semaphore.h>" nogil:
    ctypedef struct sem_t:
        pass
    int sem_init(sem_t *semaphore, int shared, unsigned int value)
    int sem_destroy(sem_t *semaphore)
    int sem_post(sem_t *semaphore)
    int sem_wait(sem_t *semaphore)
    int sem_timedwait(sem_t *semaphore, const timespec *until)

cdef enum:
    PIECES_MAX = 1024    # IOV_MAX of Linux
    SECOND_NS = 1_000_000_000
    PAUSE_NS = 20_000_000

cdef struct Step:
    int fd
    int64_t position
    Py_ssize_t first, count    # its pieces
    bint durably


cdef struct Work:
    Step *steps
    Py_ssize_t count
    iovec *pieces


cdef class Job:
    """Writes one after the other, and what they need kept in place meanwhile."""

    cdef Work work
    cdef Py_buffer *views
    cdef Py_ssize_t held

    def __cinit__(self, list steps):
        cdef Py_ssize_t count = 0, i
        cdef Step *step
        for _, pieces, _, _ in steps:
            count += len(pieces)
        self.work.steps = <Step *>malloc(max(len(steps), 1) * sizeof(Step))
        self.work.pieces = <iovec *>malloc(max(count, 1) * sizeof(iovec))
        self.views = <Py_buffer *>malloc(max(count, 1) * sizeof(Py_buffer))
        if self.work.steps == NULL or self.work.pieces == NULL or self.views == NULL:
            raise MemoryError
        for i, (fd, pieces, position, durably) in enumerate(steps):
            step = &self.work.steps[i]
            step.fd, step.position, step.durably = fd, position, durably
            step.first, step.count = self.held, len(pieces)
            for piece in pieces:
                PyObject_GetBuffer(piece, &self.views[self.held], PyBUF_SIMPLE)
                self.work.pieces[self.held].iov_base = self.views[self.held].buf
                self.work.pieces[self.held].iov_len = self.views[self.held].len
                self.held += 1
        self.work.count = len(steps)

    def __dealloc__(self):
        cdef Py_ssize_t i
        for i in range(self.held):
            PyBuffer_Release(&self.views[i])
        free(self.views)
        free(self.work.pieces)
        free(self.work.steps)


def write_pieces(int fd, pieces, int64_t position, bint durably):
    """Write ``pieces`` end to end from ``position`` on, and sync the file if wanted; returns 0, or
    the number of the error after which nothing is known of what was written."""
    cdef Job job = Job([(fd, pieces, position, durably)])
    cdef int failed
    with nogil:
        failed = carry_out(&job.work)
    return failed


cdef int carry_out(const Work *work) noexcept nogil:
    """0, or the number of the error of the step that failed: those after it are not begun."""
    cdef Step *step
    cdef Py_ssize_t i
    cdef int failed = 0
    for i in range(work.count):
        step = &work.steps[i]
        failed = write(step.fd, work.pieces + step.first, step.count, step.position)
        if step.durably and not failed:
            failed = sync(step.fd)
        if failed:
            break
    return failed


cdef int write(int fd, iovec *rest, Py_ssize_t count, int64_t position) noexcept nogil:
    cdef Py_ssize_t written
    while True:
        while count and rest.iov_len == 0:
            rest += 1
            count -= 1
        if count == 0:
            return 0
        written = pwritev(fd, rest, <int>min(count, PIECES_MAX), position)
        if written < 0 and errno == EINTR:
            continue
        if written <= 0:
            return errno if written < 0 else EIO
        position += written
        while written >= <Py_ssize_t>rest.iov_len:
            written -= rest.iov_len
            rest += 1
            count -= 1
            if count == 0:
                return 0
        rest.iov_base = <char *>rest.iov_base + written
        rest.iov_len -= written


cdef int sync(int fd) noexcept nogil:
    while fdatasync(fd) < 0:
        if errno != EINTR:
            return errno
    return 0


cdef int64_t now_ns() noexcept nogil:
    cdef timespec now
    clock_gettime(CLOCK_MONOTONIC, &now)
    return <int64_t>now.tv_sec * SECOND_NS + now.tv_nsec


cdef class WritingThread:
    """One job at a time. After each, and once when none has come for a while, its file becomes
    readable: then ``take_done`` and ``take_pause`` say what happened."""

    cdef readonly int fd
    cdef object thread
    cdef Job job
    cdef sem_t wakes
    cdef const Work *work
    cdef int64_t elapsed_ns
    cdef int failed
    cdef bint is_done, is_pausing, is_stopping, has_synced

    def __cinit__(self, str name):
        self.fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        sem_init(&self.wakes, 0, 0)
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.thread.start()

    def start(self, list steps not None):
        """``steps``: (fd, pieces, position, whether to sync), carried out in order until one fails.
        Only when nothing is being written."""
        assert self.job is None
        self.job = Job(steps)
        self.work = &self.job.work
        sem_post(&self.wakes)

    def take_done(self):
        """Of a job that is over: the number of its error or 0, and how long it took in seconds;
        None while there is none."""
        cdef uint64_t told
        read_file(self.fd, &told, sizeof(told))
        if not self.is_done:
            return None
        self.is_done = False
        self.job = None
        return self.failed, self.elapsed_ns / 1e9

    def take_pause(self):
        """Whether nothing was written for a while; once."""
        if not self.is_pausing:
            return False
        self.is_pausing = False
        return True

    def stop(self):
        """After what it is doing; ``take_done`` still tells of that."""
        self.is_stopping = True
        sem_post(&self.wakes)
        self.thread.join()

    def close(self):
        os.close(self.fd)
        sem_destroy(&self.wakes)

    def _run(self):
        with nogil:
            self.work_on()

    cdef void work_on(self) noexcept nogil:
        cdef int64_t began_ns
        while True:
            self.await_work()
            if self.work != NULL:
                began_ns = now_ns()
                self.failed = carry_out(self.work)
                self.elapsed_ns = now_ns() - began_ns
                self.has_synced = self.work.steps[self.work.count - 1].durably
                self.work = NULL
                self.is_done = True
                self.tell()
            elif self.is_stopping:
                return

    cdef void await_work(self) noexcept nogil:
        cdef timespec until
        if self.has_synced:
            self.has_synced = False
            clock_gettime(CLOCK_REALTIME, &until)
            until.tv_nsec += PAUSE_NS
            if until.tv_nsec >= SECOND_NS:
                until.tv_nsec -= SECOND_NS
                until.tv_sec += 1
            while True:
                if sem_timedwait(&self.wakes, &until) == 0:
                    return
                if errno == ETIMEDOUT:
                    break
            self.is_pausing = True
            self.tell()
        while sem_wait(&self.wakes) < 0:
            pass    # a signal

    cdef void tell(self) noexcept nogil:
        cdef uint64_t one = 1
        write_file(self.fd, &one, sizeof(one))
