"""A pytest plugin under which torchvision can be imported, whichever torch it was built for.

Built for another torch, such as one with CUDA beside one without, it stops at the declaration of two operators that its
compiled part would have registered. Processors use neither, so declaring them is enough.
"""

from __future__ import annotations

import torch

try:
    import torchvision
except RuntimeError:
    LIBRARY = torch.library.Library("torchvision", "DEF")  # as long as it is held
    LIBRARY.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    LIBRARY.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    import torchvision  # noqa: F401
