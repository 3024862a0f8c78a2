"""Ways to run a step in parts, and again where memory ran out.

batch --> micro_batched (micro): some samples at a time --.
      '-> tiled (tiles): one window at a time ------------+--> step;  refuse_norms_across: where parts are not exact
out of memory --> recovering (recover): put back what the step changed, tighten the plan, run it again
"""

from outsize.strategies.steps.across import refuse_norms_across
from outsize.strategies.steps.micro import micro_batched
from outsize.strategies.steps.recover import Shortage, Tighten, recovering
from outsize.strategies.steps.tiles import tiled

__all__ = ["Shortage", "Tighten", "micro_batched", "recovering", "refuse_norms_across", "tiled"]
