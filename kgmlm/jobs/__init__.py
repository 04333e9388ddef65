"""What the commands do, as functions: the same names, the same options, typed results.

They are reached as ``kgmlm.train``, ``kgmlm.evaluate`` and so on. Options that say ``run`` take a
:class:`~kgmlm.run.Run` or the path of one. ``progress`` is True (bars), False (none) or a function of (what
is being done, how many just were, how many there are).
"""
