"""The toy pair with a target of int8 weights, in a process that has torchao: what came of it, as JSON.

Its own draft drafts, and a new one that reads the target's states.
"""

from __future__ import annotations

import json
from dataclasses import replace

import torch

from specllava.core.config import DecodingConfig
from specllava.models.drafts.fresh_feature_draft import fresh_feature_draft
from specllava.pair import Pair
from support import models

if __name__ == "__main__":
    pair = Pair.from_preset("toy", device="cpu", quantization="torchao-int8")
    target = pair.target
    layers = target.model.language_model.layers[0].mlp.up_proj, target.lm_head
    config = DecodingConfig(max_new_tokens=12)
    reading = replace(pair, draft=fresh_feature_draft(target).eval())  # beside the target's own embeddings and head
    runs = [
        each.compare(models.picture(seed), "Describe this image.", config)
        for each in (pair, reading)
        for seed in range(3)
    ]
    found = {
        "quantised": [type(layer.weight.data) is not torch.Tensor for layer in layers],
        "dtype": pair.info.dtype,
        "ids": [{name: trace.token_ids for name, trace in traces.items()} for traces in runs],
    }
    print(json.dumps(found))
