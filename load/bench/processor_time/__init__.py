"""Where the processor time of a server goes: by process and thread from /proc, by function from py-spy and perf."""
