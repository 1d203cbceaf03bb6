"""What is done to a request before it is one: limits, time-outs, hosts, tokens."""
