"""The proof that a training's plan changed nothing: what `verify` tries of it, on small steps of the run's own model.

prove_plan (plan) --> the step as planned, and what it moves (steps) --> StepProof, SwapProof (proofs)
                  --> fused layers, recorded steps; each strategy proved or not, and why (claims) --> Claim
"""

from outsize.train.prove.claims import ProvingGround
from outsize.train.prove.plan import Finding, prove_plan

__all__ = ["Finding", "ProvingGround", "prove_plan"]
