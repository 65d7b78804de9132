"""The model repository of a profile, as text: each file follows from the profile and the depth table alone."""
