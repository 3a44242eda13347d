from hypothesis import settings

# A busy machine makes single examples slow; that is no finding.
settings.register_profile("steady", deadline=None)
settings.load_profile("steady")
