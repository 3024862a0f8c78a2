"""ConvLSTM encoder-forecaster (Shi et al., 2015): convolutions in the gates of a memory that runs through time.

    frame t-2   frame t-1   now                     zeros, or frames carried on by optical flow
        |           |        |                          |         |         |
      shrink      shrink   shrink                     shrink    shrink    shrink
        |           |        |      (h, c)              |         |         |
      cell ------ cell --- cell  ------------------>  cell ---- cell ---- cell       a layer; there may be several
                                                        |         |         |
                                                     enlarge   enlarge   enlarge
                                                        |         |         |
                                                     +10 min   +20 min   +30 min

What a cell does at each place (i, f, o, g are convolutions of its input beside its own last answer h):

    c = sigmoid(f) * c + sigmoid(i) * tanh(g)           h = sigmoid(o) * tanh(c)
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from outsize.errors import ModelError, explain

State = tuple[Tensor, Tensor]


class ConvLSTM(nn.Module):
    """Sees frames one after the other and answers with those that come, each of the size of the input.

    Bands beyond `num_in` are frames carried on: one for each lead, that the forecaster sees when it comes to it.
    """

    fills_up = True  # with zeros to its stride, and crops its answer

    def __init__(
        self,
        *,
        in_channels: int,
        num_classes: int,
        num_in: int = 0,
        width: int = 32,
        layers: int = 2,
        kernel: int = 3,
        stride: int = 4,
        zero_head: bool = False,
    ) -> None:
        """`zero_head`: the first answer is 0 everywhere, for what is added to something that is right already."""
        super().__init__()
        num_in = num_in or (in_channels if in_channels == num_classes else 0)
        _check(in_channels, num_classes, num_in, (width, layers, kernel, stride))
        self.num_in, self.num_out, self.width, self.stride = num_in, num_classes, width, stride
        self.sees_leads = in_channels > num_in
        around = max(1, stride // 2)
        self.shrink = nn.Conv2d(1, width, 2 * around + 1, stride, padding=around)
        self.encoder = nn.ModuleList(ConvLSTMCell(width, width, kernel) for _ in range(layers))
        self.forecaster = nn.ModuleList(ConvLSTMCell(width, width, kernel) for _ in range(layers))
        self.enlarge = nn.ConvTranspose2d(width, width, stride, stride)
        self.head = nn.Conv2d(width, 1, 3, padding=1)
        if zero_head:
            nn.init.zeros_(self.head.weight)
            assert self.head.bias is not None
            nn.init.zeros_(self.head.bias)

    @property
    def settings(self) -> dict[str, object]:
        """What a checkpoint must tell of how this was built."""
        return {"num_in": self.num_in}

    def forward(self, frames: Tensor) -> Tensor:
        """Return the frames that come (sample, lead, row, column)."""
        height, width = frames.shape[-2:]
        missing = (0, -width % self.stride, 0, -height % self.stride)
        x = F.pad(frames, missing) if any(missing) else frames
        times = [F.relu(self.shrink(each)) for each in x.split(1, dim=1)]
        states: list[State | None] = [None] * len(self.encoder)
        _through(self.encoder, times[: self.num_in], states)
        blank = torch.zeros_like(times[0])
        given = times[self.num_in :] if self.sees_leads else [blank] * self.num_out
        hidden = _through(self.forecaster, given, states)
        forecast = torch.cat([self.head(F.relu(self.enlarge(each))) for each in hidden], dim=1)
        return forecast[..., :height, :width] if any(missing) else forecast


class ConvLSTMCell(nn.Module):
    """One layer of a memory, at one time: all four gates by one convolution."""

    def __init__(self, in_channels: int, width: int, kernel: int) -> None:
        super().__init__()
        self.gates = nn.Conv2d(in_channels + width, 4 * width, kernel, padding=kernel // 2)
        # at first what is remembered stays: a gate of sigmoid(1) lets most of it through
        with torch.no_grad():
            assert self.gates.bias is not None
            self.gates.bias.zero_()
            self.gates.bias[width : 2 * width] = 1.0

    def forward(self, x: Tensor, state: State | None) -> State:
        """Return what is answered and remembered; without a state there is nothing yet of either."""
        if state is None:
            blank = x.new_zeros((x.shape[0], self.gates.out_channels // 4, *x.shape[2:]))
            state = blank, blank
        hidden, memory = state
        gates = self.gates(torch.cat((x, hidden), dim=1))
        width = memory.shape[1]
        let_in, keep, let_out = torch.sigmoid(gates[:, : 3 * width]).chunk(3, dim=1)
        memory = keep * memory + let_in * torch.tanh(gates[:, 3 * width :])
        return let_out * torch.tanh(memory), memory


def _through(cells: nn.ModuleList, times: list[Tensor], states: list[State | None]) -> list[Tensor]:
    """Run frames through the layers, one layer after the other; `states` become those of the last time."""
    for layer, cell in enumerate(cells):
        state, answers = states[layer], []
        for x in times:
            state = cell(x, state)
            answers.append(state[0])
        states[layer], times = state, answers
    return times


def _check(in_channels: int, num_classes: int, num_in: int, sizes: tuple[int, ...]) -> None:
    for name, value in zip(("width", "layers", "kernel", "stride"), sizes, strict=True):
        if type(value) is not int or value < 1:
            need = "a whole number of at least 1"
            raise ModelError(
                explain(f"convlstm cannot be built with {name}", repr(value), need, "correct it")
            )
    if sizes[2] % 2 == 0:
        need = "an odd number: the middle pixel is the one that is remembered"
        raise ModelError(explain("convlstm cannot be built with kernel", sizes[2], need, "correct it"))
    if in_channels not in (num_in, num_in + num_classes) or num_in < 1:
        seen = num_in or "num_in"
        need = f"{seen} frames, or as many and {num_classes}, one carried on for each lead"
        found = f"{in_channels} bands"
        raise ModelError(
            explain("frames do not fit convlstm", found, need, "set model.num_in to data.frames.num_in")
        )
