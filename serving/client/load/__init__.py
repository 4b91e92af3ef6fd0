"""The load of servers: how long requests take, how many may run.

All calls of a client share `latency`, which estimates how long a request
usually takes, for the sizes of tasks, deadlines and hedging, and `window`,
which limits the requests that run on a server at the same time. `hedging` finds
the tasks of a call that another server repeats, and `probes` the servers that
work again.
"""
