"""Working doubles of HTTP APIs, on loopback: real servers with real rules, for the demo and the tests."""
