"""What doubt was worth: favourite right, saved by another branch, missed. Shipped races and synthetic ones."""

from __future__ import annotations

from support.shipped_races import shipped_races, shown_traces

from specllava.metrics import judged_nodes, saved_tokens


def test_every_judged_node_has_the_outcome_of_the_accepted_path() -> None:
    for trace in shown_traces(20):
        for step in trace.steps:
            accepted, children = step.verification.accepted, step.tree.children()
            judged = {each.position: each for each in judged_nodes(step)}
            for position, node in enumerate(step.verification.path[: len(step.emitted)]):
                if not children[node]:
                    assert position not in judged
                    continue
                family = sorted(children[node], key=lambda n: -step.tree.log_probs[n])
                right = accepted[position] if position < len(accepted) else None
                outcome = "missed" if right is None else "favourite" if right == family[0] else "saved"
                assert (judged[position].node, judged[position].outcome) == (node, outcome)
                assert step.emitted[position] in [step.tree.tokens[n] for n in family] or outcome == "missed"


def test_another_branch_saved_tokens_of_the_opening_example() -> None:
    """The number that is the whole argument for a tree appeared nowhere."""
    first = next(race for race in shipped_races() if race.name == "1-describe").lead
    assert sum(map(saved_tokens, first.steps)) == 41
    assert all(any(saved_tokens(step) for step in race.lead.steps) for race in shipped_races())
