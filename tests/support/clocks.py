"""A clock that stands still until it is moved."""


class ManualClock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now

    def move(self, seconds):
        self.now += seconds
