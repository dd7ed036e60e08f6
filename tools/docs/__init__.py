"""Build the documentation site: ``python -m tools.docs`` (``make docs``) writes build/site, which needs no network.

Pages are docs/*.md, the README as the front page, and pages made here from the source: API, commands, keys of run
files, errors.
"""
