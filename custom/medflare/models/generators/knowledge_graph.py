# SPDX-License-Identifier: Apache-2.0
"""DCL's dynamic graph: general concepts of a chest radiograph, and what retrieved reports state.

Source: Li et al., Dynamic Graph Enhanced Contrastive Learning for Chest X-ray Report Generation, CVPR 2023,
section 3.2. The general graph is that of Zhang et al., AAAI 2020: organs, and the findings of each. A
retrieved report adds the codes that it gives the 14 conditions, linked to the organ of each (BL-14).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from medflare.core.conditions import CONDITIONS, Code

ORGANS: dict[str, tuple[str, ...]] = {
    "normal": ("other finding",),
    "heart": ("cardiomegaly",),
    "spine": ("scoliosis",),
    "pleural": ("effusion", "thickening", "pneumothorax"),
    "bone": ("fracture",),
    "lung": ("emphysema", "pneumonia", "edema", "atelectasis", "cicatrix", "opacity", "lesion"),
    "mediastinum": ("hernia", "calcinosis", "foreign object"),
    "airspace": ("airspace disease", "hypoinflation"),
}
"""Organ -> the general findings of it; 27 concepts, and one node that all others see."""
CONDITION_ORGANS: dict[str, str] = {
    "enlarged cardiomediastinum": "mediastinum",
    "cardiomegaly": "heart",
    **dict.fromkeys(("lung lesion", "edema", "pneumonia", "atelectasis"), "lung"),
    **dict.fromkeys(("lung opacity", "consolidation"), "airspace"),
    **dict.fromkeys(("pneumothorax", "pleural effusion", "pleural other"), "pleural"),
    "fracture": "bone",
    "support devices": "mediastinum",
    "no finding": "normal",
}
"""Condition -> the organ that a statement about it is linked to."""
STATED = (Code.POSITIVE, Code.NEGATIVE, Code.UNCERTAIN)
"""Codes that are a statement; a blank one adds nothing."""
CONCEPTS = 1 + sum(1 + len(findings) for findings in ORGANS.values())
"""Nodes that are always there: the one that all see, organs and their findings."""
NODES = CONCEPTS + len(CONDITIONS) * len(STATED)


def groups() -> Tensor:
    """Return the number of each node's organ, (NODES,) int64; 0 is the node that all others see."""
    of_organ = {organ: number + 1 for number, organ in enumerate(ORGANS)}
    general = [of_organ[organ] for organ, findings in ORGANS.items() for _ in range(1 + len(findings))]
    stated = [of_organ[CONDITION_ORGANS[condition]] for condition in CONDITIONS for _ in STATED]
    return torch.tensor([0, *general, *stated])


def links() -> Tensor:
    """Return which nodes see each other, (NODES, NODES) bool: those of one organ, and the common node."""
    organ = groups()
    same = organ[:, None] == organ[None]
    return same | (organ == 0)[:, None] | (organ == 0)[None]


def present_nodes(codes: Tensor) -> Tensor:
    """Return which nodes a graph has, (B, NODES) bool.

    Args:
        codes: (B, k, 14) of the k reports retrieved for each image; blank where fewer were found.
    """
    stated = torch.stack([(codes == int(code)).any(1) for code in STATED], 2)  # (B, 14, 3)
    general = torch.ones(len(codes), CONCEPTS, dtype=torch.bool, device=codes.device)
    return torch.cat([general, stated.flatten(1)], 1)


class ImageAttention(nn.Module):
    """One layer in which image features read the graph: attention and a feed-forward part, after norms."""

    def __init__(self, width: int, heads: int, feed_forward: int, dropout: float) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(width, heads, dropout, batch_first=True)
        self.feed_forward = nn.Sequential(
            nn.Linear(width, feed_forward), nn.ReLU(), nn.Dropout(dropout), nn.Linear(feed_forward, width)
        )
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.dropout = nn.Dropout(dropout)

    def forward(self, image: Tensor, nodes: Tensor, absent: Tensor) -> Tensor:
        """Return image features (B, S, width) that have read nodes (B, N, width) but the absent (B, N)."""
        query = self.norms[0](image)
        read = self.attention(query, nodes, nodes, key_padding_mask=absent, need_weights=False)[0]
        image = image + self.dropout(read)
        spread: Tensor = self.feed_forward(self.norms[1](image))
        return image + self.dropout(spread)


class GraphReader(nn.Module):
    """Embeds a dynamic graph, relates its nodes along its links, and lets image features read it.

    Args:
        width: of nodes and image features.
    """

    seen: Tensor

    def __init__(
        self, width: int, heads: int, feed_forward: int = 1024, layers: int = 2, dropout: float = 0.1
    ) -> None:
        super().__init__()
        self.heads = heads
        self.nodes = nn.Embedding(NODES, width)
        nn.init.normal_(self.nodes.weight, std=0.02)
        layer = nn.TransformerEncoderLayer(
            width, heads, feed_forward, dropout, batch_first=True, norm_first=True
        )
        self.relate = nn.TransformerEncoder(
            layer, layers, norm=nn.LayerNorm(width), enable_nested_tensor=False
        )
        self.readers = nn.ModuleList(
            ImageAttention(width, heads, feed_forward, dropout) for _ in range(layers)
        )
        self.norm = nn.LayerNorm(width)
        self.register_buffer("seen", links(), persistent=False)

    def embed(self, present: Tensor) -> Tensor:
        """Return the nodes of graphs after their layers, (B, NODES, width).

        Args:
            present: (B, NODES) bool; a node that is absent is seen by nobody but itself.
        """
        itself = torch.eye(NODES, dtype=torch.bool, device=present.device)
        allowed = self.seen & present[:, None] | itself  # (B, NODES, NODES)
        mask = ~allowed.repeat_interleave(self.heads, 0)  # (B * heads, NODES, NODES)
        nodes: Tensor = self.relate(self.nodes.weight.expand(len(present), -1, -1), mask=mask)
        return nodes

    def forward(self, image: Tensor, codes: Tensor) -> Tensor:
        """Return image features (B, S, width) after they have read the graph of the codes (B, k, 14)."""
        present = present_nodes(codes)
        nodes = self.embed(present)
        for reader in self.readers:
            image = reader(image, nodes, ~present)
        normal: Tensor = self.norm(image)
        return normal
