"""Many runs in one call: expand a suite into runs, carry them out on a backend, report the progress."""
