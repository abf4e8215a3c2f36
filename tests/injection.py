"""Ctrl-C at a chosen line or call, from a trace function: also where no ``finally`` has begun."""

import signal
import sys

WATCHED = ("/normscope/", "contextlib.py", "grad_mode.py", "overrides.py", "/attention/")


class Injection:
    """Counts lines, calls and returns, and sends SIGINT at the chosen ones."""

    def __init__(self, *at, watched=WATCHED, kinds=("call", "line", "return", "exception")):
        self.at, self.count, self.watched, self.kinds = set(at), 0, watched, kinds

    def __enter__(self):
        sys.settrace(self.event)
        return self

    def __exit__(self, *_):
        sys.settrace(None)

    def event(self, frame, kind, _):
        name = frame.f_code.co_filename
        if kind == "call" and not any(part in name for part in self.watched):
            return None
        self.count += kind in self.kinds
        if kind in self.kinds and self.count in self.at:
            signal.raise_signal(signal.SIGINT)
        return self.event


def interrupted(run, model, *at, **which):
    """Run with a Ctrl-C at these events: how many there were, and whether it came out."""
    with Injection(*at, **which) as injection:
        try:
            run(model)
        except KeyboardInterrupt:
            return injection.count, True
    return injection.count, False
