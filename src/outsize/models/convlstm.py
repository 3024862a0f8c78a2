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
        num_in = num_in or (in_channels if in_channels <= num_classes else in_channels - num_classes)
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
        states: list[State | None] = [None] * len(self.encoder)
        for number in range(self.num_in):
            _through(self.encoder, self._seen(x[:, number : number + 1]), states)
        blank = torch.zeros_like(_answer(states))
        answers = []
        for lead in range(self.num_out):
            at = self.num_in + lead
            given = self._seen(x[:, at : at + 1]) if self.sees_leads else blank
            hidden = _through(self.forecaster, given, states)
            answers.append(self.head(F.relu(self.enlarge(hidden))))
        forecast = torch.cat(answers, dim=1)
        return forecast[..., :height, :width] if any(missing) else forecast

    def _seen(self, frame: Tensor) -> Tensor:
        return F.relu(self.shrink(frame))


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
        let_in, keep, let_out, new = self.gates(torch.cat((x, hidden), dim=1)).chunk(4, dim=1)
        memory = torch.sigmoid(keep) * memory + torch.sigmoid(let_in) * torch.tanh(new)
        return torch.sigmoid(let_out) * torch.tanh(memory), memory


def _through(cells: nn.ModuleList, x: Tensor, states: list[State | None]) -> Tensor:
    """Run the layers at one time, each on what the one before it answers; `states` become theirs."""
    for layer, cell in enumerate(cells):
        state: State = cell(x, states[layer])
        states[layer] = state
        x = state[0]
    return x


def _answer(states: list[State | None]) -> Tensor:
    last = states[-1]
    assert last is not None
    return last[0]


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
    if in_channels not in (num_in, num_in + num_classes):
        need = f"{num_in} frames, or {num_in + num_classes} with one carried on for each lead"
        found = f"{in_channels} bands"
        raise ModelError(explain("frames do not fit convlstm", found, need, "correct model.num_in"))
