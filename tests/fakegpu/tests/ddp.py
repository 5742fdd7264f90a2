"""One rank of a small DistributedDataParallel training: the backend is the argument, rank and bytes the output."""

import json
import os
import sys

import torch
import torch.distributed as dist

local = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local)
dist.init_process_group(sys.argv[1])
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(512, 512).cuda(), device_ids=[local])
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(3):
    model(torch.randn(16, 512, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
used = torch.cuda.mem_get_info()[1] - torch.cuda.mem_get_info()[0]
reserved = torch.cuda.memory_reserved()
line = {"rank": dist.get_rank(), "device": torch.cuda.current_device(), "used": used, "reserved": reserved}
print(f"\nANSWER{json.dumps(line)}", flush=True)
dist.destroy_process_group()
