"""A metadata log directory built anew from what the bucket holds."""
