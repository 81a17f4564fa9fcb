"""What the controller is asked, and how each command is decided."""
