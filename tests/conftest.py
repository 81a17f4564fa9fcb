"""What holds for the whole suite: no property test is judged by the clock, since the machine may be busy with other things."""

from hypothesis import settings

settings.register_profile("house", deadline=None)
settings.load_profile("house")
