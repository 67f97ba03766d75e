"""llama.cpp beside this project (assets/smol/README.md): what its server is asked and tells, without that server."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from gguf import GGUFReader, GGUFWriter
from safetensors.torch import load_file

from benchmarks import llama_cpp
from benchmarks.shared import llama_server
from benchmarks.shared.eagle_gguf import NAMES, write_eagle3
from benchmarks.shared.llama_server import Answer, ask

ROOT = Path(__file__).resolve().parents[1]
DRAFT = ROOT / "assets" / "smol" / "draft"
END = 2
PROMPT = SimpleNamespace(input_ids=torch.tensor([[1, 7, 9]]), length=3)


def answering(tokens, **times):
    """A server that gives tokens, and what it was asked."""
    requests = []
    told = {"prompt_n": 3, "prompt_ms": 30.0, "predicted_n": len(tokens), "predicted_ms": 500.0} | times
    reply = {"timings": told, "__verbose": {"tokens": tokens}}
    return SimpleNamespace(handle_completions=lambda asked: requests.append(asked) or reply), requests


def test_llama_cpp_is_asked_for_the_same_tokens_greedily_and_its_times_are_read():
    server, requests = answering([5, 6, 5, 6, 8, END])
    assert ask(server, 16, frozenset({END}), PROMPT) == Answer((5, 6, 5, 6, 8), 5, 5, 0.03, 0.5)
    (asked,) = requests
    assert asked["prompt"] == [1, 7, 9] and asked["max_tokens"] == 16 and not asked["cache_prompt"]
    assert asked["samplers"] == ["top_k"] and asked["top_k"] == 1


def test_accepted_guesses_save_passes():
    server, _ = answering([5, 6, 5, 6, 8, END], draft_n=9, draft_n_accepted=3)
    answer = ask(server, 16, frozenset({END}), PROMPT)
    assert (answer.emitted, answer.passes) == (5, 2)


@pytest.mark.parametrize("reply", [{"code": 400, "message": "no"}, {"timings": {"prompt_n": 4}}])
def test_what_is_no_answer_to_this_prompt_is_refused_in_one_line(reply):
    server = SimpleNamespace(handle_completions=lambda asked: reply)
    with pytest.raises(ValueError, match="did not answer 3 tokens") as refused:
        ask(server, 16, frozenset({END}), PROMPT)
    assert "\n" not in str(refused.value)


def test_the_draft_is_the_same_in_llama_cpps_file(tmp_path):
    target, output = tmp_path / "target.gguf", tmp_path / "draft.gguf"
    written = GGUFWriter(target, "llama")
    written.add_tokenizer_model("gpt2")
    written.add_token_list(["a", "b"])
    written.write_header_to_file()
    written.write_kv_data_to_file()
    written.close()
    write_eagle3(DRAFT, target, output)
    read = GGUFReader(output)
    facts = {name: field.contents() for name, field in read.fields.items()}
    assert facts["tokenizer.ggml.model"] == "gpt2" and facts["tokenizer.ggml.tokens"] == ["a", "b"]
    config = json.loads((DRAFT / "config.json").read_text())
    assert facts["general.architecture"] == "eagle3" and facts["eagle3.target_layers"] == config["state_layers"]
    weights = load_file(DRAFT / "model.safetensors")
    found = {tensor.name: torch.from_numpy(tensor.data.copy()) for tensor in read.tensors}
    tokens = found.pop("d2t")
    assert torch.equal(tokens, weights.pop("d2t") + torch.arange(config["draft_vocab_size"]))
    assert len(found) == len(weights) == len(NAMES)
    for name, other in NAMES.items():
        here, there = weights[f"{name}.weight"].float(), found[f"{other}.weight"].float()
        torch.testing.assert_close(there, here, rtol=1e-3, atol=1e-6)


def test_unlike_answers_are_counted_against_the_same_library_and_against_this_project():
    def lane(*answers, seconds, passes):
        return [Answer(tokens, passes, 4, 0.1, seconds) for tokens in answers]

    whole, other, short = (1, 2, 3, 4, 5), (1, 2, 9, 4, 5), (1, 2)
    found = {
        "specllava float32": lane(whole, whole, seconds=0.4, passes=4),
        "specllava float32 prompt-lookup": lane(whole, whole, seconds=0.2, passes=2),
        "llama.cpp": lane(other, short, seconds=0.1, passes=4),
        "llama.cpp ngram-simple": lane(other, whole, seconds=0.2, passes=2),
    }
    rows = llama_cpp.rows_of(found)
    assert [row["differ"] for row in rows.values()] == [0, 0, 0, 1]
    assert [row["unlike_ours"] for row in rows.values()] == [0, 0, 2, 1]
    assert [row["before"] for row in rows.values()] == [1.0, 1.0, 4 / 10, 7 / 10]
    assert [row["ms"]["value"] for row in rows.values()] == [100, 50, 25, 50]
    assert [row["tau"]["value"] for row in rows.values()] == [1, 2, 1, 2]
    assert [row["speedup"]["value"] for row in rows.values()] == [1, 2, 1, 0.5]


def test_without_the_package_the_command_names_the_way_to_it_before_it_downloads(monkeypatch):
    monkeypatch.setattr(llama_server, "find_spec", lambda name: None)
    monkeypatch.setattr(llama_cpp, "download_wheel", lambda *given: pytest.fail("a download"))
    with pytest.raises(ValueError, match=r"^llama\.cpp is not installed: .*, then PYTHONPATH=\S+$") as refused:
        llama_cpp.main(llama_cpp.LlamaConfig())
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for named in (llama_server.PACKAGE, f"--target {llama_server.FOLDER}"):
        assert named in str(refused.value) and named in makefile
