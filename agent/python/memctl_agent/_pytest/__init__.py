"""The parts of the pytest plugin. `memctl_agent.pytest_plugin` imports them when a test is to be measured.

`_limits` reads the markers, `_leaks` compares and names, `_measure` has the hooks around a test, `_runs` the figures of
several runs of its body, `_rows` the results and the table. The package `_usage` measures.
"""
