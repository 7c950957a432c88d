# SPDX-License-Identifier: Apache-2.0
"""Cost of the checks of messages: their share of a round, at the sites and at the server.

    python benchmarks/boundary_cost.py [--rounds 3] [--sites 3] [--steps 20]

A round is what happens in one, in one process: the server packs the state, FLARE's encoding carries it, every
site reads the request, trains, and sends its update through egress; the server reads the reply, checks it and
aggregates. The adapter is a LoRA of 3.1 million fp32 parameters on 12 frozen layers of width 1024, trained by
AdamW on batches of 64. Counted as checks is all of: reading requests and replies by strict models (with the
digest of plan and state that masks bind a site to), admission, the whole of egress with policy, declaration,
ledger and the site's memory on disk, and names, shapes, values and norms of updates at the server. Seconds
are of this thread's processor, so that neighbours on the machine count little; waits for the disk are in
`wall`.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from nvflare.fuel.utils import fobs
from torch import Tensor, nn

from medflare.core.plan import RoundPlan
from medflare.core.tensors import State
from medflare.core.update import Update
from medflare.egress.chain import Egress
from medflare.egress.job_memory import JobMemory
from medflare.federation.flare_messages import read_reply, read_request, reply, request_message
from medflare.federation.server.aggregator import ValidatingAggregator
from medflare.protocol import messages
from medflare.protocol.replies import check_facts
from medflare.wire.plan_codec import plan_to_json
from medflare.wire.task_messages import TaskResult

LAYERS, WIDTH, RANK, BATCH, EXAMPLES = 12, 1024, 128, 64, 1000


class Clock:
    """Seconds of processor and of the wall by what they were spent on."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = {}

    @contextmanager
    def count(self, what: str) -> Iterator[None]:
        """Add the seconds of the block."""
        cpu, wall = time.thread_time(), time.perf_counter()
        yield
        total = self.seconds.setdefault(what, [0.0, 0.0])
        total[0] += time.thread_time() - cpu
        total[1] += time.perf_counter() - wall


class Lora(nn.Module):
    """Frozen layers, each with a pair of low-rank factors."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.frozen = [torch.randn(WIDTH, WIDTH, generator=generator) / WIDTH**0.5 for _ in range(LAYERS)]
        self.a = nn.ParameterList(
            torch.randn(RANK, WIDTH, generator=generator) / WIDTH**0.5 for _ in range(LAYERS)
        )
        self.b = nn.ParameterList(torch.zeros(WIDTH, RANK) for _ in range(LAYERS))

    def forward(self, x: Tensor) -> Tensor:
        """x: (batch, WIDTH) -> (batch, WIDTH)."""
        for frozen, a, b in zip(self.frozen, self.a, self.b, strict=True):
            x = torch.tanh(x @ frozen.T + (x @ a.T) @ b.T)
        return x

    def shared(self) -> State:
        """Return the communicated tensors."""
        factors = (("A", self.a), ("B", self.b))
        return {
            f"adapter.layers.{i}.lora_{end}.weight": value.detach().clone()
            for end, values in factors
            for i, value in enumerate(values)
        }

    def load_shared(self, state: State) -> None:
        """Take the communicated tensors."""
        with torch.no_grad():
            for end, values in (("A", self.a), ("B", self.b)):
                for i, value in enumerate(values):
                    value.copy_(state[f"adapter.layers.{i}.lora_{end}.weight"])


def fit(model: Lora, state: State, steps: int, seed: int) -> Update:
    """Train and return the update."""
    model.load_shared(state)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    generator = torch.Generator().manual_seed(seed)
    loss = torch.zeros(())
    for _ in range(steps):
        x = torch.randn(BATCH, WIDTH, generator=generator)
        loss = ((model(x) - x.roll(1, 1)) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    delta = {name: value - state[name] for name, value in model.shared().items()}
    return Update(delta=delta, examples=EXAMPLES, metrics={"loss": loss.item()})


def run_round(
    clock: Clock,
    number: int,
    state: State,
    model: Lora,
    doors: dict[str, Egress],
    aggregator: ValidatingAggregator,
    steps: int,
) -> State:
    """Run one round over all sites and return the next state."""
    sites = list(doors)
    with clock.count("rest"):
        request = messages.Request(
            task=messages.FIT,
            run_id="run-1",
            round=number,
            roster=sites,
            deadline=600.0,
            uplink="float32",
            downlink="float32",
            plan=plan_to_json(RoundPlan(round=number, rounds=100, steps=steps)),
        )
        packed = fobs.dumps(request_message(request, state))
    with clock.count("server checks"):
        aggregator.norms.begin(state)
    with clock.count("rest"):
        aggregator.begin(number, state, sites)
    for k, (site, egress) in enumerate(doors.items()):
        with clock.count("rest"):
            message = fobs.loads(packed)
        with clock.count("site checks"):
            received = read_request(message, messages.FIT, site)
            egress.memory.bind("prepare", "settings", received.run_id, received.seed, received.roster)
            facts = {"method": "lora", "protections": (), "rounds": 100, "limit": None}
            partners = [name for name in sites if name != site]
            egress.admit(messages.FIT, number, received.place, sites=len(sites), partners=partners, **facts)
        with clock.count("training"):
            update = fit(model, received.tensors, steps, seed=100 * number + k)
        tensors, facts = update.to_message()
        with clock.count("site checks"):
            sent = egress.send(messages.FIT, number, TaskResult({**facts, "seconds": 1.0}, tensors))
        with clock.count("rest"):
            answer = fobs.loads(fobs.dumps(reply(received, sent.facts, sent.tensors)))
        with clock.count("server checks"):
            judged = read_reply(answer)
            assert judged.failure is None, judged.failure
            check_facts(messages.FIT, judged.facts, site)
            problem = aggregator.problem(site, number, judged.facts, judged.tensors)
            assert problem is None, problem
            aggregator.norms.problem(site, judged.tensors)
        with clock.count("rest"):  # which checks once more
            refused = aggregator.accept(site, number, judged.facts, judged.tensors)
            assert refused is None, refused
    with clock.count("rest"):
        aggregator.flush()
        after, _, _ = aggregator.finish()
    return after


def main() -> None:
    """Print the seconds of a round and the share of the checks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sites", type=int, default=3)
    parser.add_argument("--steps", type=int, default=20)
    given = parser.parse_args()
    torch.set_num_threads(1)
    model, clock = Lora(), Clock()
    state = model.shared()
    spec = {name: (tuple(value.shape), value.dtype) for name, value in state.items()}
    sites = [f"site-{i + 1}" for i in range(given.sites)]
    aggregator = ValidatingAggregator()
    aggregator.uplink = "float32"
    aggregator.expect(spec, {}, dict.fromkeys(sites, EXAMPLES))
    with tempfile.TemporaryDirectory() as folder:
        doors = {}
        for site in sites:
            home = Path(folder) / site
            home.mkdir()
            memory = JobMemory(home / "job_memory.json")
            doors[site] = Egress(home / "egress.jsonl", site, "job", uplink="float32", memory=memory)
            doors[site].declare(spec, {})
        for number in range(given.rounds):
            state = run_round(clock, number, state, model, doors, aggregator, given.steps)
    count = sum(value.numel() for value in state.values())
    print(
        f"{count:,} parameters, {given.sites} sites, {given.steps} steps; seconds a round (processor, wall)"
    )
    for what, (cpu, wall) in clock.seconds.items():
        print(f"{what:14} {cpu / given.rounds:8.3f} {wall / given.rounds:8.3f}")
    for i, name in enumerate(("processor", "wall")):
        total = sum(seconds[i] for seconds in clock.seconds.values())
        checks = sum(clock.seconds[what][i] for what in ("site checks", "server checks"))
        print(f"share of the checks by {name}: {100 * checks / total:.2f} %")


if __name__ == "__main__":
    main()
