"""The parts of the pytest plugin. `memctl_agent.pytest_plugin` imports them when a test is to be measured.

`_history` records the allocator's events through PyTorch, `_trace` computes figures from them, `_limits` reads the
markers, `_leaks` compares and names, `_measure` has the hooks around a test, `_rows` the results and the table.
"""
