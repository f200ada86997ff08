"""How tensors shrink and survive: codecs. Pure: tensors in, bytes out, and back; no network, no files, no clock.

Rule: whatever is decoded from the same bytes is the same bits, on every machine and with any number of threads. Zero maps to zero.
Reading order: `codec`.

Python 3.14 has a standard-library package called `compression`, which `gzip` and others need. A checkout of this repository on
`sys.path` would shadow it, so that this file, imported under that plain name, steps aside: it takes the standard library's folder
as its own and stops.
"""

if __name__ == "compression":
    import os

    __path__ = [os.path.join(os.path.dirname(os.__file__), "compression")]
else:
    from shoal.compression.codec import Cast, Codec, CodecError, Int8, count_non_finite

    __all__ = ["Cast", "Codec", "CodecError", "Int8", "count_non_finite"]
