"""Awaitables for what is done already: no coroutine is made for it.

A method that seldom has to wait returns one of these, so that calling it costs little, and calling
it without ``await`` is no mistake.
"""


cdef class Done:
    """There is nothing to wait for."""

    def __await__(self):
        return self

    def __iter__(self):
        return self

    def __next__(self):
        raise StopIteration


cdef class Turn:
    """Lets others run once: a loop over what never waits would keep them out."""

    def __await__(self):
        yield


cdef class Later:
    """Waits in a way that is only begun if somebody awaits it."""
    cdef object begin

    def __init__(self, begin):
        self.begin = begin

    def __await__(self):
        return self.begin().__await__()


DONE = Done()
TURN = Turn()
