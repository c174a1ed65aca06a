"""A wake-up call comes once, is kept, and may come from a signal's handler in the middle of another."""

from __future__ import annotations

import signal
import threading
import time

from roundoff.delivery.wake import Wake


def test_a_call_is_kept_and_several_are_one() -> None:
    wake = Wake()
    wake.call()
    wake.call()
    began = time.monotonic()
    wake.wait(5)
    assert time.monotonic() - began < 1
    wake.wait(0.05)
    assert time.monotonic() - began > 0.05


def test_it_wakes_a_thread_that_waits() -> None:
    wake = Wake()
    thread = threading.Thread(target=wake.wait, args=(30,))
    thread.start()
    wake.call()
    thread.join(5)
    assert not thread.is_alive()


def test_a_handler_may_call_while_its_thread_does() -> None:
    """With a `threading.Event` the handler waits for a lock that the code which it interrupted holds."""
    wake, handled = Wake(), []

    def handle(number: int, frame: object) -> None:
        wake.call()
        handled.append(number)

    before = signal.signal(signal.SIGALRM, handle)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
        end = time.monotonic() + 0.5
        while time.monotonic() < end:
            wake.call()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert len(handled) > 50
