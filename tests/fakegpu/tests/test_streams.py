"""Streams, events and captured graphs behave as PyTorch's allocator sees them."""

from conftest import Script

RECORD = """
torch.cuda.memory._record_memory_history(max_entries=1000)
side = torch.cuda.Stream()
x = torch.empty(1 << 20, device="cuda")
x.record_stream(side)
address = x.data_ptr()
del x
held = [torch.empty(1 << 20, device="cuda") for _ in range(8)]
answer["reused_at"] = [y.data_ptr() for y in held].index(address)
answer["actions"] = [e["action"] for e in torch.cuda.memory._snapshot()["device_traces"][0]]
"""


def test_a_lagging_event_delays_the_free_of_a_recorded_tensor(script: Script) -> None:
    found = script(RECORD, FAKE_GPU_EVENT_LAG="4")
    requested = found["actions"].index("free_requested")
    assert found["actions"].index("free_completed") > requested + 3
    assert found["reused_at"] > 2


def test_without_lag_it_is_freed_at_the_next_allocation(script: Script) -> None:
    assert script(RECORD)["reused_at"] == 0


def test_synchronising_ends_the_lag(script: Script) -> None:
    found = script(
        """
        event = torch.cuda.Event()
        event.record()
        answer["before"] = event.query()
        torch.cuda.synchronize()
        answer["after"] = event.query()
        """,
        FAKE_GPU_EVENT_LAG="1000000",
    )
    assert found == {"before": False, "after": True}


def test_graph_capture_uses_a_private_pool(script: Script) -> None:
    found = script(
        """
        model, x = torch.nn.Linear(256, 256).cuda(), torch.randn(32, 256, device="cuda")
        model(x)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            answer["capturing"] = torch.cuda.is_current_stream_capturing()
            y = model(x).relu()
        graph.replay()
        torch.cuda.synchronize()
        answer["capturing_after"] = torch.cuda.is_current_stream_capturing()
        segments = torch.cuda.memory._snapshot()["segments"]
        answer["pools"] = sorted({tuple(s["segment_pool_id"]) for s in segments})
        answer["in_pool"] = any(
            s["address"] <= y.data_ptr() < s["address"] + s["total_size"]
            for s in segments if tuple(s["segment_pool_id"]) != (0, 0)
        )
        """
    )
    assert found["capturing"] and not found["capturing_after"]
    assert len(found["pools"]) == 2 and found["in_pool"]


def test_graphed_callables_run_forward_and_backward(script: Script) -> None:
    found = script(
        """
        model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU()).cuda()
        graphed = torch.cuda.make_graphed_callables(model, (torch.randn(8, 64, device="cuda", requires_grad=True),))
        for _ in range(3):
            graphed(torch.randn(8, 64, device="cuda")).sum().backward()
        answer["gradient"] = model[0].weight.grad is not None
        """
    )
    assert found["gradient"]


def test_elapsed_time_is_the_hosts(script: Script) -> None:
    found = script(
        """
        first, second = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        second.record()
        answer["ordered"] = first.elapsed_time(second) >= 0 >= second.elapsed_time(first)
        """
    )
    assert found["ordered"]
