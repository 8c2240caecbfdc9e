"""Many runs in one call: expand a suite into runs, execute them on a backend, report the progress."""
