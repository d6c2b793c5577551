class Counters:
    received: int
    sent: int
    dropped: int
