"""What models cost: time, memory and state at growing length, each beside a Transformer measured in the same process.

``case`` says what is measured, ``measure`` measures it inside a process of its own (``apart``, ``resident``),
``record`` keeps it, ``run`` goes through all cases, ``relative``, ``growth`` and ``papers`` compare, ``report`` shows.
"""
