"""Made by `python -m shoal.protocol.generate`; never edited."""
