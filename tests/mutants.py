"""One-line defects that the tests must see: ``python -m tests.mutants [K1 ...]``, all of them without a name.

Each is put into a copy of this tree, and the test that is responsible for it runs there. It has to fail by an assertion
on a value: an import that fails, a fixture, or an error of another kind proves nothing. Exit code 1 where one survives,
or where its line is no longer there exactly once.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from importlib.util import cache_from_source
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[1]
LEFT_OUT = shutil.ignore_patterns(".git", ".venv", ".*_cache", ".hypothesis", ".ci", "docs", "node_modules")
PATIENCE = 600  # seconds


class Mutant(NamedTuple):
    """A line of ``file`` (``old``, found once) as it must not be (``new``), and the test that dies of it."""

    name: str
    file: str
    old: str
    new: str
    test: str


MUTANTS = (
    # trees and rules
    Mutant("K1", "specllava/tree.py",
           "mask[node] |= mask[self.parents[node]]",
           "mask[node, self.parents[node]] = True",
           "test_tree_and_rules.py::test_a_node_sees_exactly_its_own_path"),
    Mutant("R1", "specllava/spec_decode/rules.py",
           "math.ceil(math.exp(top.entropy))",
           "math.floor(math.exp(top.entropy))",
           "test_tree_and_rules.py::test_children_by_entropy"),
    Mutant("R2", "specllava/spec_decode/rules.py",
           "return heapq.nlargest(self.width, alive,",
           "return heapq.nsmallest(self.width, alive,",
           "test_tree_and_rules.py::test_the_kept_nodes_are_the_best_of_everything"),
    Mutant("R3", "specllava/spec_decode/rules.py",
           "own = acceptance[rank] * (1 + below[:budget])",
           "own = acceptance[rank] * (1 + 0 * below[:budget])",
           "test_tree_and_rules.py::test_sequoias_shape_promises_more_than_any_other"),
    Mutant("R4", "specllava/spec_decode/growth.py",
           "likeliest = heapq.nlargest(MAX_PRUNED, dropped,",
           "likeliest = heapq.nsmallest(MAX_PRUNED, dropped,",
           "test_tree_and_rules.py::test_pruned_guesses_are_the_likeliest_that_the_tree_lacks"),
    Mutant("R5", "specllava/spec_decode/growth.py",
           "if builder.tokens[node] not in ends]",
           "if builder.tokens[node] not in ends or node]",
           "test_tree_and_rules.py::test_nothing_is_guessed_after_the_end_of_an_answer"),
    Mutant("R6", "specllava/spec_decode/tree_drafter.py",
           "self._config, self._settings.eos_token_ids)",
           "self._config)",
           "test_drafters.py::test_no_method_changes_a_token"),
    Mutant("D1", "specllava/spec_decode/tree_drafter.py",
           "visible[row, [*branch, start + row]] = True",
           "visible[row, [*branch[:-1], start + row]] = True",
           "test_decoding.py::test_every_guess_has_the_probability_of_its_own_branch_read_alone"),
    # checkpoints
    Mutant("CH1", "specllava/models/drafts/eagle_checkpoint.py",
           "mask.flatten().nonzero()[:, 0]",
           "mask.flatten().nonzero()[1:, 0]",
           "test_formats.py::test_a_map_that_names_other_tokens_than_the_mask_is_refused"),
    Mutant("CH2", "specllava/models/tokens.py",
           "return int(states.shape[1] - ",
           "return int(1 + 0 * states.shape[1] - 0 * ",
           "test_checkpoints.py::test_slots_are_counted_as_the_tower_fills_them"),
    Mutant("CH3", "specllava/metrics.py",
           "totals.target_passes < UNUSED_PASSES",
           "totals.target_passes <= UNUSED_PASSES",
           "test_metrics.py::test_a_draft_that_is_never_right_is_reported_after_32_passes"),
    # verification and sampling
    Mutant("V1", "specllava/spec_decode/rejection_sampler.py",
           "        if match is None:",
           "        if match is None or len(accepted) == 4:",
           "test_drafters.py::test_of_a_perfect_draft_the_likeliest_branch_is_accepted_whole"),
    Mutant("E1", "specllava/spec_decode/loop.py",
           "start=1) if token in eos), room)",
           "start=1) if token in eos and number > 1), room)",
           "test_verify_and_sampling.py::test_clip_stops_after_the_first_end_or_when_the_room_is_full"),
    Mutant("E2", "specllava/spec_decode/loop.py",
           "emitted = emitted[:end]",
           "emitted = emitted[:]",
           "test_generate.py::test_an_answer_ends_at_a_stop_string_wherever_it_is_completed"),
    Mutant("Q1", "specllava/spec_decode/logits_processing.py",
           "for step in tree.path(node)[1:]]",
           "for step in tree.path(node)[1:-1]]",
           "test_generate.py::test_greedy_answers_are_those_of_generate_under_each_setting"),
    Mutant("S1", "specllava/spec_decode/rejection_sampler.py",
           "        token = random.draw(probs[node])",
           "        token = random.draw(probs[0])",
           "test_verify_and_sampling.py::test_chosen_children_are_lossless_and_no_rule_accepts_more"),
    Mutant("S2", "specllava/spec_decode/rejection_sampler.py",
           "draft = _without(self.draft, token)",
           "draft = self.draft",
           "test_verify_and_sampling.py::test_drawn_children_are_lossless"),
    Mutant("S3", "specllava/spec_decode/rejection_sampler.py",
           ".clamp(min=0.0)",
           ".abs()",
           "test_verify_and_sampling.py::test_drawn_children_are_lossless"),
    Mutant("H1", "specllava/spec_decode/rejection_sampler.py",
           "else wanted / offered",
           "else (wanted / offered) ** 1.02",
           "test_verify_and_sampling.py::test_drawn_children_are_lossless"),
    Mutant("H2", "specllava/spec_decode/logits_processing.py",
           "config.top_k = 1, top_p, top_k",
           "config.top_k = 1, 1.0, top_k",
           "test_verify_and_sampling.py::test_warping_is_what_it_says"),
    # caches and passes
    Mutant("C1", "specllava/engine/kv_cache.py",
           "slab[..., target, :] = slab.index_select(4, source.to(slab.device))",
           "slab[:, :1][..., target, :] = slab[:, :1].index_select(4, source.to(slab.device))",
           "test_cache_and_memory.py::test_a_committed_branch_leaves_what_its_tokens_alone_would_have_left"),
    Mutant("P1", "specllava/engine/decoders.py",
           "[cached + depth for depth in tree.depths()]",
           "[cached + node for node in range(len(tree))]",
           "test_families.py::test_a_tree_pass_scores_each_path_as_alone[llava_onevision]"),
    Mutant("X1", "specllava/engine/kv_cache.py",
           "self.states[target] = self.states.index_select(0, source)",
           "self.states[target] = self.states[target]",
           "test_cache_and_memory.py::test_true_states_replace_guessed_ones_after_every_step"),
    Mutant("X2", "specllava/engine/engine.py",
           "self.position_offset = 0 if positions is None else int(",
           "self.position_offset = 0 if True else int(",
           "test_families.py::test_a_tree_pass_scores_each_path_as_alone[qwen2_vl]"),
    Mutant("X3", "specllava/engine/engine.py",
           "slots[None] < self.window",
           "slots[None] <= self.window",
           "test_families.py::test_a_kept_branch_is_seen_through_the_window_as_its_tokens_alone"),
    Mutant("X4", "specllava/engine/kv_cache.py",
           "if cached != wanted or cached is None",
           "if cached != wanted",
           "test_cache_and_memory.py::test_a_cached_prompt_needs_one_slot_and_one_that_ends_in_a_picture_the_picture"),
    Mutant("G1", "specllava/engine/engine.py",
           "ids = torch.tensor(list(batch.tokens), device=device)",
           "ids = torch.tensor(list(batch.tokens))",
           "test_passes.py::test_passes_mix_no_tensors_of_host_and_device"),
    Mutant("W1", "specllava/engine/decoders.py",
           "for count in range(len(steps))]",
           "for count in range(1, len(steps))]",
           "test_decoding.py::test_what_wraps_a_module_acts_as_in_generate_or_is_refused_until_it_is_removed"),
    Mutant("W2", "specllava/engine/decoders.py",
           "if type(self.decoder) is LlamaModel and not hooked(self.decoder):",
           "if type(self.decoder) is LlamaModel:",
           "test_decoding.py::test_what_wraps_a_module_acts_as_in_generate_or_is_refused_until_it_is_removed"),
    Mutant("G2", "specllava/engine/cuda_graphs.py",
           "integers[1, count:] = range(self._scratch, self._scratch + self.rows - count)",
           "integers[1, count:] = 0",
           "test_passes.py::test_padded_and_captured_passes_compute_what_eager_ones_do"),
    Mutant("G3", "specllava/engine/cuda_graphs.py",
           "last = window_of(min(used + slots, self._cache.capacity))",
           "last = window_of(used + 1)",
           "test_passes.py::test_nothing_is_captured_in_the_middle_of_an_answer"),
    Mutant("G4", "specllava/engine/cpu.py",
           "return self.version == weight._version and torch.equal(self.checksums, _checksums(weight))",
           "return self.version == weight._version",
           "test_llama_layers.py::test_answers_are_those_of_generate_whatever_changes_between_them"),
    Mutant("G5", "specllava/engine/cpu.py",
           "1.0 if count == most else SURE",
           "1.0 if count == most else 1.0",
           "test_llama_layers.py::test_the_fastest_number_of_threads_is_the_cheapest_one_unless_more_are_as_good"),
    Mutant("W3", "specllava/engine/cuda_graphs.py",
           "graph = None if self._decoder.wrapped else self._captured(shape, batch.drafted, reduction)",
           "graph = self._captured(shape, batch.drafted, reduction)",
           "test_decoding.py::test_what_wraps_a_module_acts_as_in_generate_or_is_refused_until_it_is_removed"),
    # totals of traces
    Mutant("T1", "specllava/trace.py",
           "return self.vision_seconds + self.target_seconds + self.draft_seconds",
           "return self.vision_seconds + self.target_seconds",
           "test_metrics.py"),
    Mutant("T2", "specllava/metrics.py",
           "accepted=len(step.emitted_nodes),",
           "accepted=len(step.verification.accepted),",
           "test_metrics.py::test_totals_are_pooled_over_runs"),
    Mutant("T3", "specllava/metrics.py",
           "next(forks, len(step.emitted)) - 1)",
           "next(forks, len(step.emitted)))",
           "test_metrics.py"),
    # sentences and headline
    Mutant("F1", "visual/player/sentences.py",
           "    fork = shown[0]",
           "    fork = shown[-1]",
           "test_drawing.py::test_every_clause_of_a_step_is_recomputed"),
    Mutant("F2", "visual/player/sentences.py",
           '*after, ["", " the guess was "], ["refused", quoted(word_at(trace, step, family[0]))],',
           '*after, ["", " the guess was "], ["refused", quoted(word_at(trace, step, family[-1]))],',
           "test_drawing.py::test_every_clause_of_a_step_is_recomputed"),
    Mutant("F3", "visual/player/sentences.py",
           "passes, without = len(together.steps), len(alone.steps)",
           "passes, without = len(together.steps), len(alone.token_ids)",
           "test_drawing.py::test_the_headline_counts_passes_and_tokens"),
    Mutant("F4", "visual/player/tree.py",
           "after = (None if self.ended[parent] else choices[parent] for parent in tree.parents[1:])",
           "after = (None if self.ended[parent] else choices[0] for parent in tree.parents[1:])",
           "test_drawing.py::test_trees_are_those_of_the_trace"),
    Mutant("F5", "visual/player/tree.py",
           'result.append("refused" if parent in judged else "unreached")',
           'result.append("refused" if parent in taken else "unreached")',
           "test_drawing.py::test_trees_are_those_of_the_trace"),
    Mutant("F6", "visual/page/pays.py",
           "least, before = cost + drafting,",
           "least, before = cost + 2 * drafting,",
           "test_drawing.py::test_whether_it_pays_is_tau_over_the_price_of_a_step"),
    # training
    Mutant("L1", "specllava/distill/losses.py",
           "objective.temperature**2",
           "objective.temperature",
           "test_distill.py::test_chunks_give_the_formula_and_its_gradient"),
    Mutant("L2", "specllava/distill/losses.py",
           "positions, read = positions + 1, read + 1",
           "positions, read = positions, read + 1",
           "test_distill.py::test_the_loss_is_the_plain_one_step_by_step"),
    # questions about toy scenes
    Mutant("Q0", "recipes/toy/hints.py",
           "for thing in among if looks <= self.words(thing) | self.spots(thing)]",
           "for thing in among if looks & (self.words(thing) | self.spots(thing))]",
           "test_training.py::test_a_question_names_the_cells_that_it_asks_for_and_announces_those_of_its_answer"),
    Mutant("Q9", "recipes/toy/hints.py",
           "digits[index + 1] = later",
           "digits[index + 1] = self.none",
           "test_training.py::test_twins_are_announced_one_after_the_other"),
    Mutant("Q8", "recipes/toy/hints.py",
           "for one in (word, plurals.get(word, word))",
           "for one in (word,)",
           "test_training.py::test_a_word_of_a_question_ends_where_its_last_token_does"),
    Mutant("Q2", "recipes/toy/packed_losses.py",
           "right = names[:, :, None, None].eq(batch",
           "right = names[:, :, None, None].ne(batch",
           "test_training.py::test_finding_loss_is_the_share_of_attention_that_transformers_gives_the_slots_that_are_asked_for"),
    Mutant("Q3", "recipes/toy/evaluate.py",
           "        if not own & earlier:",
           "        if own:",
           "test_toyworld_language.py::test_a_later_turn_has_no_object_or_colour_that_stood_before_it"),
    Mutant("Q4", "recipes/toy/evaluate.py",
           "right = text in trial.answers",
           "right = text.startswith(trial.answers)",
           "test_toyworld_language.py::test_only_a_true_answer_counts_and_every_measure_has_its_own_count"),
    Mutant("Q5", "recipes/toy/questions.py",
           'winner, loser = (first, second) if pair[0].size == "large"',
           'winner, loser = (first, second) if pair[0].size == "small"',
           "test_toyworld_language.py::test_every_answer_of_every_family_is_true"),
    Mutant("Q6", "recipes/toy/wordings.py",
           '*COLOURS, "colour", "colours"})',
           "*COLOURS})",
           "test_toyworld_language.py::test_no_training_question_is_one_of_the_evaluation"),
    Mutant("Q7", "recipes/toy/evaluate.py",
           "generated[:, length:]",
           "generated[:, length + 1 :]",
           "test_toyworld_language.py::test_answers_in_batches_are_those_of_the_target_alone"),
    # admission
    Mutant("A1", "visual/page/serve.py",
           "if len(begun) >= self._most:",
           "if len(begun) > self._most:",
           "test_admission.py::test_an_address_asks_so_often_in_a_minute_and_no_more"),
    Mutant("A2", "visual/page/serve.py",
           "if header[0] not in FORWARDED]",
           "if header[0] not in FORWARDED[1:]]",
           "test_admission.py::test_only_a_trusted_proxy_says_under_which_address_the_page_is_shown"),
    Mutant("A3", "visual/page/serve.py",
           "if depth > MAX_DEPTH:",
           "if depth > 2 * MAX_DEPTH:",
           "test_admission.py::test_a_body_that_would_cost_too_much_is_refused_however_it_is_called"),
    Mutant("A4", "visual/page/state.py",
           'return latest[1] if latest is not None and latest[0] == number else "left"',
           'return latest[1] if latest is not None else "on"',
           "test_page_server.py::test_a_newer_request_ends_the_older_and_only_of_that_visitor"),
    # images
    Mutant("I2", "specllava/models/images.py",
           "get(ExifTags.Base.Orientation) in SIDEWAYS",
           "get(ExifTags.Base.Orientation) not in SIDEWAYS",
           "test_pictures.py::test_a_file_shows_what_transformers_reads_of_it_however_it_is_given"),
    Mutant("I4", "specllava/models/images.py",
           'Image.new("RGBA", clear.size, "white")',
           'Image.new("RGBA", clear.size, "black")',
           "test_pictures.py::test_modes_of_pillow_are_read_as_transformers_reads_them"),
    Mutant("I3", "specllava/prompt.py",
           "repeat(key, count) for key, count",
           "repeat(image_keys[0], count) for key, count",
           "test_cache_and_memory.py::test_the_same_words_about_another_picture_do_not_reuse_the_old_one"),
    # player
    Mutant("J1", "visual/static/tree.js",
           'const kind = node === 0 ? "o" : decided ? tree.kind[node] : "g";',
           'const kind = node === 0 ? "o" : decided ? tree.kind.at(-1) : "g";',
           "test_browser_inside.py::test_each_phase_of_each_step_shows_its_words_its_tree_and_its_text"),
    Mutant("J2", "visual/static/stage.js",
           'const after = stop.phase === "accept" || stop.phase === "keep";',
           'const after = stop.phase === "keep";',
           "test_browser_inside.py::test_each_phase_of_each_step_shows_its_words_its_tree_and_its_text"),
    Mutant("J3", "visual/static/race.js",
           "Math.min(passesEnded(race, clock) + 1, race.aloneWords.length);",
           "Math.min(passesEnded(race, clock), race.aloneWords.length);",
           "test_browser_inside.py::test_the_bars_and_the_second_cursor_follow_the_recorded_clocks"),
    Mutant("J4", "visual/static/words.js",
           "for (let at = node; at >= 0; at = parent[at]) path.push(at);",
           "for (let at = node; at > 0; at = parent[at]) path.push(at);",
           "test_browser_inside.py::test_the_mask_is_the_trees_own_and_the_cache_keeps_the_branch"),
    Mutant("J5", "visual/static/words.js",
           "const kept = new Set([0, ...tree.path]);",
           "const kept = new Set(tree.path);",
           "test_browser_inside.py::test_the_mask_is_the_trees_own_and_the_cache_keeps_the_branch"),
    Mutant("J6", "visual/static/text.js",
           "tokens[at].hidden = at >= upto;",
           "tokens[at].hidden = at > upto;",
           "test_browser_inside.py::test_each_phase_of_each_step_shows_its_words_its_tree_and_its_text"),
    # messages
    Mutant("M1", "specllava/models/tokens.py",
           "if WORD in written and MARK not in written:",
           "if WORD in written:",
           "test_messages.py::test_texts_are_in_the_prompt_as_transformers_writes_them[printed]"),
    Mutant("M2", "specllava/prompt.py",
           "content, media = [*[{\"type\": \"image\"}] * len(first), *parts], [*first, *media]",
           "content, media = [*parts, *[{\"type\": \"image\"}] * len(first)], [*first, *media]",
           "test_messages.py::test_parts_keep_their_order"),
)  # fmt: skip


def run_test(tree: Path, test: str) -> tuple[bool, str]:
    """Run a test of a copy; whether it died by an assertion on a value, and how else it ended."""
    report = tree / "report.xml"
    report.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "-n", "0", "-x", "-q", "-m", "", "-p", "no:cacheprovider",
               f"--junitxml={report}", f"tests/{test}"]  # fmt: skip
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    try:
        done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        return False, f"took more than {PATIENCE} s"
    if not report.is_file():
        return False, f"exit code {done.returncode}, no report: {(done.stdout + done.stderr)[-200:]!r}"
    cases = list(ElementTree.parse(report).iter("testcase"))
    failures = [one for case in cases for one in case.findall("failure")]
    errors = [one for case in cases for one in case.findall("error")]
    if errors:
        return False, f"an error and no assertion: {errors[0].get('message', '')[:80]}"
    if not failures:
        return False, f"survived {len(cases)} tests" if done.returncode == 0 else f"exit code {done.returncode}"
    message = failures[0].get("message", "")
    return message.startswith(("AssertionError", "assert ")), " ".join(message.split())[:60]


def put(file: Path, text: str) -> None:
    """Write a file, and forget what was compiled of it."""
    file.write_text(text, encoding="utf-8")
    Path(cache_from_source(str(file))).unlink(missing_ok=True)


def main(names: list[str]) -> int:
    """Try the mutants; return the number of those that were not killed as they should be, 1 at the most."""
    if unknown := {*names} - {mutant.name for mutant in MUTANTS}:
        sys.exit(f"no such mutant: {', '.join(sorted(unknown))}")
    alive = 0
    with tempfile.TemporaryDirectory(prefix="specllava-mutants-") as folder:
        tree = Path(folder) / "tree"
        shutil.copytree(ROOT, tree, ignore=LEFT_OUT)
        for mutant in (one for one in MUTANTS if not names or one.name in names):
            began, file = time.monotonic(), tree / mutant.file
            text = file.read_text(encoding="utf-8") if file.is_file() else ""
            if text.count(mutant.old) != 1:
                killed, how = False, f"its line is there {text.count(mutant.old)} times"
            else:
                put(file, text.replace(mutant.old, mutant.new))
                killed, how = run_test(tree, mutant.test)
                put(file, text)
            alive += not killed
            verdict = "killed" if killed else "ALIVE "
            print(f"{mutant.name:3} {verdict} {time.monotonic() - began:4.0f} s  {mutant.file}  {how}", flush=True)
    print(f"{alive} of {len(names) or len(MUTANTS)} alive")
    return int(alive > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
