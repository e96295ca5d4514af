"""Several hosts on one machine, for checks, tests and examples of a cluster. Linux.

layout  hosts in network namespaces, or on loopback; `python -m nanokv.check.lab.layout up NAME`
etcd    an etcd that can be killed and started again
links   faults of the network: a link that is down, hosts that do not reach each other
guard   takes a layout away even if the process that made it is killed
"""
