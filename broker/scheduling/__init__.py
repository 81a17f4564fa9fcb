"""Who may run when: keyed queues, semaphores and long work in slices."""
