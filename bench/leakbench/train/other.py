"""Neither text nor images: an agent with a replay memory, graphs of any size, a mixer, an autoencoder.

`python other.py NAME` trains one. Nothing here leaks; the benchmark adds the leaks. These trainings mark epochs and
steps with `record_function` ranges; in the others, analysis must find them.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn
from torch.profiler import record_function

torch.backends.cudnn.enabled = False


def perceptron(*sizes: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for a, b in zip(sizes, sizes[1:]):
        layers += [nn.Linear(a, b), nn.SiLU()]
    return nn.Sequential(*layers[:-1])


def replay_agent(epochs: int = 15, steps: int = 20) -> None:
    """Q-learning: memory on the device made at the start, a target network that follows."""
    online, target = perceptron(64, 256, 256, 128, 8).cuda(), perceptron(64, 256, 256, 128, 8).cuda()
    target.load_state_dict(online.state_dict())
    optimizer = torch.optim.Adam(online.parameters(), amsgrad=True)
    states, rewards = torch.zeros(20_000, 64, device="cuda"), torch.zeros(20_000, device="cuda")
    for epoch in range(epochs):
        with record_function(f"epoch#{epoch}"):
            for step in range(steps):
                with record_function(f"step#{epoch * steps + step}"):
                    with torch.no_grad():  # act
                        for _ in range(4):
                            online(torch.randn(1, 64, device="cuda")).argmax(1).item()
                    batch = torch.arange(256, device="cuda")
                    state, reward = states[batch], rewards[batch]
                    with torch.no_grad():
                        wanted = reward + 0.99 * target(state).max(1).values
                    loss = F.smooth_l1_loss(online(state).max(1).values, wanted)
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
                    with torch.no_grad():
                        for slow, fast in zip(target.parameters(), online.parameters()):
                            slow.lerp_(fast, 0.005)


class GraphLayer(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.message, self.update, self.norm = nn.Linear(2 * size, size), nn.GRUCell(size, size), nn.LayerNorm(size)

    def forward(self, x: torch.Tensor, source: torch.Tensor, sink: torch.Tensor) -> torch.Tensor:
        message = F.relu(self.message(torch.cat([x[source], x[sink]], dim=1)))
        gathered = torch.zeros_like(x).index_add(0, sink, message)
        return self.norm(self.update(gathered, x))


class GraphNet(nn.Module):
    def __init__(self, width: int = 96, layers: int = 3) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(16, width), nn.Linear(width, 1)
        self.layers = nn.ModuleList(GraphLayer(width) for _ in range(layers))

    def forward(self, nodes: torch.Tensor, source: torch.Tensor, sink: torch.Tensor) -> torch.Tensor:
        x = self.enter(nodes)
        for layer in self.layers:
            x = layer(x, source, sink)
        return self.leave(x).mean()


def graphs(epochs: int = 12, steps: int = 24) -> None:
    """No two batches have the same size."""
    model = GraphNet().cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    rng = random.Random(11)
    for epoch in range(epochs):
        with record_function(f"epoch#{epoch}"):
            for step in range(steps):
                with record_function(f"step#{epoch * steps + step}"):
                    nodes, edges = rng.randrange(200, 3000), rng.randrange(1000, 12_000)
                    source = torch.zeros(edges, dtype=torch.long, device="cuda")
                    sink = torch.zeros(edges, dtype=torch.long, device="cuda")
                    loss = model(torch.randn(nodes, 16, device="cuda"), source, sink)
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()


class Mixer(nn.Module):
    def __init__(self, tokens: int = 64, width: int = 192, layers: int = 4) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(48, width), nn.Linear(width, 10)
        self.tokens = nn.ModuleList(perceptron(tokens, 128, tokens) for _ in range(layers))
        self.channels = nn.ModuleList(perceptron(width, 384, width) for _ in range(layers))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.enter(x)
        for place, (tokens, channels) in enumerate(zip(self.tokens, self.channels)):
            x = x + tokens(self.norms[2 * place](x).transpose(1, 2)).transpose(1, 2)
            x = x + channels(self.norms[2 * place + 1](x))
        return self.leave(x.mean(1))


def mixer(epochs: int = 12, steps: int = 22) -> None:
    """Validates with gradients on at each epoch's end, and releases them."""
    model = Mixer().cuda()
    optimizer = torch.optim.NAdam(model.parameters())
    label = torch.zeros(32, dtype=torch.long, device="cuda")
    for epoch in range(epochs):
        with record_function(f"epoch#{epoch}"):
            for step in range(steps):
                with record_function(f"step#{epoch * steps + step}"):
                    loss = F.cross_entropy(model(torch.randn(32, 64, 48, device="cuda")), label)
                    loss.backward()
                    optimizer.step()
                    optimizer.zero_grad(set_to_none=True)
            with record_function("validate"):
                model.eval()
                for _ in range(2):
                    F.cross_entropy(model(torch.randn(32, 64, 48, device="cuda")), label).item()
                model.train()


class Autoencoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = perceptron(784, 512, 256, 64), perceptron(32, 256, 512, 784)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        mean, spread = self.encoder(x).chunk(2, dim=1)
        code = mean + torch.randn_like(mean) * torch.exp(0.5 * spread)
        divergence = -0.5 * (1 + spread - mean.square() - spread.exp()).sum(1).mean()
        return self.decoder(code), divergence


def autoencoder(epochs: int = 20, steps: int = 18) -> None:
    """Gradients are kept and zeroed, not freed."""
    model = Autoencoder().cuda()
    optimizer = torch.optim.Adagrad(model.parameters())
    for epoch in range(epochs):
        with record_function(f"epoch#{epoch}"):
            for step in range(steps):
                with record_function(f"step#{epoch * steps + step}"):
                    x = torch.randn(128, 784, device="cuda")
                    again, divergence = model(x)
                    loss = F.mse_loss(again, x) + divergence
                    optimizer.zero_grad(set_to_none=False)
                    loss.backward()
                    optimizer.step()


TRAINED: list[Callable[[], None]] = [replay_agent, graphs, mixer, autoencoder]

if __name__ == "__main__":
    random.seed(1)
    torch.manual_seed(1)
    {train.__name__: train for train in TRAINED}[sys.argv[1]]()
