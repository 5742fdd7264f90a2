"""Measures how much GPU memory a piece of the program uses: a test, or a cell of a notebook.

`_history` records the allocator's events through PyTorch, `_trace` computes figures from them, `_held` names the
objects that hold blocks, `_amounts` writes amounts for people. The pytest plugin and the notebook's magic use these
parts.
"""
