"""The command ``python -m specllava custom-generate``: speculative decoding as a repository that transformers loads."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rich.console import Console

from specllava.cli.options import print_line
from specllava.core.files import check_free, whole_directory

GENERATE: Final = '''\
"""Lossless tree speculation: ``model.generate(**inputs, custom_generate=THIS_REPOSITORY, draft=…)``."""

from specllava import speculative_generate


def generate(model, **arguments):
    return type(model).generate(model, **arguments, custom_generate=speculative_generate)
'''
README: Final = """\
---
library_name: transformers
tags:
  - custom_generate
  - speculative-decoding
---

# Lossless tree speculation for vision-language models

A small draft guesses a tree of tokens and the model checks it in one pass. The answer is the model's own.

```python
out = model.generate(
    **inputs, custom_generate="THIS_REPOSITORY", trust_remote_code=True, draft="DRAFT", max_new_tokens=256
)
```

`draft` is an id of the hub or a directory. Options are those of specllava's `DecodingConfig`, each by its name.
"""


@dataclass(frozen=True)
class CustomGenerate:
    """Write the folder of a Hub repository for ``model.generate(custom_generate=…)`` of transformers."""

    output: Path
    """Directory to write; it must not exist."""

    def run(self, console: Console) -> None:
        check_free(self.output)
        with whole_directory(self.output) as folder:
            code = folder / "custom_generate"
            code.mkdir(parents=True)
            (code / "generate.py").write_text(GENERATE, encoding="utf-8")
            (code / "requirements.txt").write_text("specllava\n", encoding="utf-8")
            (folder / "README.md").write_text(README, encoding="utf-8")
        print_line(console, f"{self.output}: give it, or its id on the hub, as custom_generate=")
