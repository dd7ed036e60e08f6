"""Tables as people have them: what their columns mean, and records within public bounds."""
