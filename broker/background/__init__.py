"""Work of a running broker that no request asks for."""
