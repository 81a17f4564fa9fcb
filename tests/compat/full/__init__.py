"""What takes minutes: collected when MILLRACE_COMPAT=full, run by `make compat`."""
