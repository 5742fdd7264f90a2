"""Training runs on the fake GPU, and PyTorch's allocator reports the same as on a real GPU."""

from conftest import Script

TRAIN = """
torch.cuda.memory._record_memory_history(max_entries=100_000)
model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 10)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for step in range(3):
    model(torch.randn(64, 256, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_a_training_step_allocates_what_its_tensors_need(script: Script) -> None:
    found = script(
        TRAIN
        + """
parameters = sum(p.numel() * 4 for p in model.parameters())
answer.update(least=3 * parameters, allocated=torch.cuda.memory_allocated(), reserved=torch.cuda.memory_reserved())
answer["used"] = torch.cuda.mem_get_info()[1] - torch.cuda.mem_get_info()[0]
"""
    )
    # parameters and AdamW's two moments are alive; every segment, and nothing else, is on the device
    assert found["least"] <= found["allocated"] <= found["reserved"] == found["used"]


def test_snapshot_has_events_with_python_stacks(script: Script) -> None:
    found = script(
        TRAIN
        + """
snapshot = torch.cuda.memory._snapshot()
events = snapshot["device_traces"][0]
answer["actions"] = sorted({e["action"] for e in events})
answer["names"] = sorted({f["name"] for e in events for f in e["frames"]})
answer["segments"] = sum(s["total_size"] for s in snapshot["segments"])
answer["reserved"] = torch.cuda.memory_reserved()
"""
    )
    assert {"alloc", "free_requested", "free_completed", "segment_alloc"} <= set(found["actions"])
    assert {"step", "forward", "<module>"} <= set(found["names"])
    assert found["segments"] == found["reserved"] > 0


def test_out_of_memory_is_pytorchs_own(script: Script) -> None:
    found = script(
        """
        held = [torch.empty(256 << 20, dtype=torch.uint8, device="cuda") for _ in range(3)]
        try:
            torch.empty(512 << 20, dtype=torch.uint8, device="cuda")
        except torch.cuda.OutOfMemoryError as error:
            answer["text"] = str(error)
        answer["ooms"] = torch.cuda.memory_stats()["num_ooms"]
        """,
        FAKE_GPU_MIB="1024",
    )
    assert "CUDA out of memory. Tried to allocate 512.00 MiB" in found["text"]
    assert "total capacity of 1024.00 MiB" in found["text"]
    assert found["ooms"] == 1


def test_lstm_and_convolution_take_their_native_paths(script: Script) -> None:
    found = script(
        """
        torch.backends.cudnn.enabled = False
        lstm = torch.nn.LSTM(32, 32, 2).cuda()
        lstm(torch.randn(5, 4, 32, device="cuda"))[0].sum().backward()
        conv = torch.nn.Conv2d(3, 8, 3).cuda()
        conv(torch.randn(2, 3, 16, 16, device="cuda")).sum().backward()
        answer["gradients"] = all(p.grad is not None for m in (lstm, conv) for p in m.parameters())
        """
    )
    assert found["gradients"]


def test_cudnn_and_fft_refuse_with_an_error(script: Script) -> None:
    """Missing libraries return errors: after a success, garbage would be read as sizes and addresses."""
    found = script(
        """
        x = torch.randn(2, 3, 16, 16, device="cuda")
        for name, call in {"conv": lambda: torch.nn.Conv2d(3, 8, 3).cuda()(x), "fft": lambda: torch.fft.fft(x)}.items():
            try:
                call()
            except RuntimeError as error:
                answer[name] = str(error)
        """
    )
    assert set(found) == {"conv", "fft"}


def test_copies_are_real(script: Script) -> None:
    found = script(
        """
        x = torch.arange(1 << 20)
        answer["there_and_back"] = bool((x.cuda().cpu() == x).all())
        answer["between_tensors"] = bool((torch.empty_like(x, device="cuda").copy_(x.cuda()).cpu() == x).all())
        """
    )
    assert found == {"there_and_back": True, "between_tensors": True}
