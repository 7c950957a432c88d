# SPDX-License-Identifier: Apache-2.0
"""Compression of tensors on the wire: bf16, or block-wise absmax quantisation with error feedback.

A quantised tensor travels as two: `int8:16x4096:<name>` holds the codes (kind and shape stand in the name),
`scale:<name>` one bf16 number for each 64 values. int4 uses the NF4 levels of QLoRA (Dettmers et al. 2023):
on Gaussian values their squared error is 0.0085 of the variance, of 15 even levels 0.0116 and of 16 0.0101.
Vectors and scalars (norms, biases, running statistics) travel in bf16 then: they are few, and a running
variance rounded to zero breaks a layer. Sums, totals and integers are never touched.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from medflare.core.errors import UpdateError
from medflare.core.tensor_names import SUM_PREFIX, TOTAL_PREFIX
from medflare.core.tensors import SharedSpec, State
from medflare.wire.files import load_before, load_values, save_tensors

Uplink = Literal["float32", "bfloat16", "int8", "int4"]
Downlink = Literal["float32", "bfloat16", "int8"]
BLOCK = 64
SCALE = "scale:"
PACKED = re.compile(r"(int8|int4):(\d+(?:x\d+)+):(.+)", re.DOTALL)
NF4 = torch.tensor(
    [
        *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453),
        *(-0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0),
        *(0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224),
        *(0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
    ]
)
_BETWEEN = (NF4[1:] + NF4[:-1]) / 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Codec:
    """Number format of floating tensors on the wire.

    Attributes:
        plain: dtype of what is not quantised.
        bits: of one quantised value; None where the codec quantises nothing.
        summable: whether messages of several sites can be added before they are read, as masks need it.
    """

    plain: torch.dtype
    bits: int | None = None
    summable: bool = False


CODECS: dict[str, Codec] = {
    "float32": Codec(plain=torch.float32, summable=True),
    "bfloat16": Codec(plain=torch.bfloat16, summable=True),
    "int8": Codec(plain=torch.bfloat16, bits=8),
    "int4": Codec(plain=torch.bfloat16, bits=4),
}
"""Name -> codec; a job names codecs as `uplink` and `downlink`."""


def initial_codec(uplink: Uplink) -> Uplink:
    """Return the codec of a run's first values: at least bf16, as no feedback corrects their rounding."""
    return uplink if CODECS[uplink].bits is None else "bfloat16"


def _travels_lossy(name: str, dtype: torch.dtype) -> bool:
    return dtype.is_floating_point and not name.startswith((SUM_PREFIX, TOTAL_PREFIX))


def compress(state: Mapping[str, Tensor], codec_name: str) -> State:
    """Return contiguous CPU copies in the wire format; sums, totals and integers as they are."""
    codec, out = CODECS[codec_name], State()
    for name, value in state.items():
        value = value.detach().cpu()
        if not _travels_lossy(name, value.dtype):
            out[name] = value.clone(memory_format=torch.contiguous_format)
        elif codec.bits is None or value.dim() < 2:
            out[name] = value.to(codec.plain, copy=True, memory_format=torch.contiguous_format)
        else:
            shape = "x".join(str(size) for size in value.shape)
            out[f"{codec_name}:{shape}:{name}"], out[SCALE + name] = quantise(value, codec.bits)
    return out


def decompress(state: Mapping[str, Tensor]) -> State:
    """Return the tensors that `compress` packed, up to rounding; quantised tensors are fp32.

    Raises UpdateError that names the tensor for codes or scales of the wrong kind or number, for scales that
    are missing or not finite, and for a tensor that is there twice.
    """
    out, used = State(), set[str]()
    for key, value in state.items():
        match = PACKED.fullmatch(key)
        if match is None:
            continue
        codec_name, sizes, name = match.groups()
        if name in out or name in state:
            raise UpdateError(f"'{name}' is there twice, once as {codec_name}.")
        shape = tuple(int(size) for size in sizes.split("x"))
        _check_packed(name, codec_name, shape, value, state.get(SCALE + name))
        out[name] = dequantise(value, state[SCALE + name], shape, 8 if codec_name == "int8" else 4)
        used |= {key, SCALE + name}
    return {**{key: value for key, value in state.items() if key not in used}, **out}


def _check_packed(
    name: str, codec_name: str, shape: tuple[int, ...], codes: Tensor, scales: Tensor | None
) -> None:
    """UpdateError unless codes and scales can be those of a tensor of this shape."""
    count, bits = math.prod(shape), 8 if codec_name == "int8" else 4
    wanted, blocks = math.ceil(count * bits / 8), math.ceil(count / BLOCK)
    dtype = torch.int8 if bits == 8 else torch.uint8
    if codes.dtype != dtype or tuple(codes.shape) != (wanted,):
        raise UpdateError(
            f"'{name}' came as {codes.dtype} codes of shape {tuple(codes.shape)}; {codec_name} of shape "
            f"{shape} needs {dtype} of shape ({wanted},)."
        )
    if scales is None:
        raise UpdateError(f"'{name}' came as {codec_name} without its scales.")
    if scales.dtype != torch.bfloat16 or tuple(scales.shape) != (blocks,):
        raise UpdateError(
            f"'{name}' came with {scales.dtype} scales of shape {tuple(scales.shape)}; {codec_name} of shape "
            f"{shape} needs torch.bfloat16 of shape ({blocks},)."
        )
    if not (torch.isfinite(scales) & (scales >= 0)).all():
        raise UpdateError(f"'{name}' has scales that are not finite and positive.")


def quantise(value: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """Return (codes, scales) of a floating tensor: int8 codes, or two NF4 codes a byte, low half first.

    A scale is its block's largest absolute value rounded up to bf16, so no value is cut off. The error of
    int8 is at most scale/254, of NF4 at most 0.152 scale.
    """
    flat = value.float().reshape(-1)
    count = flat.numel()
    blocks = torch.nn.functional.pad(flat, (0, -count % BLOCK)).view(-1, BLOCK)
    scales = _rounded_up(blocks.abs().amax(1))
    unit = blocks / torch.where(scales > 0, scales, 1).float()[:, None]
    if bits == 8:
        return (unit * 127).round().reshape(-1)[:count].to(torch.int8), scales
    codes = torch.bucketize(unit, _BETWEEN, out_int32=True).to(torch.uint8).reshape(-1, 2)
    return (codes[:, 0] | codes[:, 1] << 4)[: math.ceil(count / 2)], scales


def dequantise(codes: Tensor, scales: Tensor, shape: tuple[int, ...], bits: int) -> Tensor:
    """Return the fp32 tensor of `shape` from what `quantise` returned."""
    if bits == 8:
        unit = codes.float() / 127
    else:
        unit = NF4[torch.stack([codes & 15, codes >> 4], 1).reshape(-1).int()]
    count = math.prod(shape)
    return (unit[:count] * scales.float().repeat_interleave(BLOCK)[:count]).view(shape)


def _rounded_up(values: Tensor) -> Tensor:
    """Return the smallest bf16 numbers that are not below fp32 `values`."""
    near = values.to(torch.bfloat16)
    above = torch.nextafter(near, torch.tensor(math.inf, dtype=torch.bfloat16))
    return torch.where(near.float() < values, above, near)


def message_bytes(spec: SharedSpec, codec_name: str) -> int:
    """Return the bytes of one message with every tensor of `spec`; equals what `byte_count` finds in it."""
    codec, total = CODECS[codec_name], 0
    for name, (shape, dtype) in spec.items():
        count = math.prod(shape)
        if not _travels_lossy(name, dtype):
            total += count * dtype.itemsize
        elif codec.bits is None or len(shape) < 2:
            total += count * codec.plain.itemsize
        else:
            total += math.ceil(count * codec.bits / 8) + math.ceil(count / BLOCK) * torch.bfloat16.itemsize
    return total


class ErrorFeedback:
    """Carries what compression lost into a site's next update: e ← Δ + e - decompress(compress(Δ + e)).

    Over the rounds the sum of what was sent differs from the sum of the updates by the last residual only
    (Karimireddy et al. 2019). The residual lies in a file at the site and is never sent.

    Args:
        file: survives a restart; written before the update leaves.
        run_id: the residual of another run counts as none.
        exchange: of the update. One that is compressed once more, after a crash, starts again from the
            residual of the exchange before: its own stands in the file already.
    """

    def __init__(self, file: Path, run_id: str, exchange: int) -> None:
        self.file, self.run_id, self.exchange = file, run_id, exchange

    def residual(self) -> State:
        """Return e before this exchange; empty before the first one, and where the disk damaged it."""
        saved = load_before(self.file, "exchange", self.exchange)
        return saved[0] if saved and saved[1]["run_id"] == self.run_id else {}

    def compress(self, update: Mapping[str, Tensor], codec_name: str) -> State:
        """Return the compressed update; its quantisation error is carried over to the next one.

        An update that is not finite is passed on to be refused, and leaves the residual as it was.
        """
        if CODECS[codec_name].bits is None:
            return compress(update, codec_name)
        before = self.residual()
        lossy = [name for name, value in update.items() if _travels_lossy(name, value.dtype)]
        values = {name: update[name].detach().cpu().float() for name in lossy}
        values = {name: value + before[name] if name in before else value for name, value in values.items()}
        sent = compress({**update, **values}, codec_name)
        if all(torch.isfinite(value).all() for value in values.values()):
            received = decompress(sent)
            residual = {name: value - received[name].float() for name, value in values.items()}
            facts = {"run_id": self.run_id, "exchange": self.exchange}
            save_tensors(self.file, residual, facts, keep_previous=not self._compressed_before())
        return sent

    def _compressed_before(self) -> bool:
        """Return whether the newest generation is this exchange's own: the one before must stay then."""
        return bool(load_values(self.file).get("exchange", -1) >= self.exchange)
