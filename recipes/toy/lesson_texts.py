"""Texts of the lessons, in the order of a class; the step that a race was searched for fills the fields in braces."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LessonTemplate:
    """One lesson.

    Args:
        question, answer: texts with the fields that the race's ``find`` fills.
        race: its name in ``lessons.RACES``.
        place, phase: as of ``visual.player.lessons.LessonText``, which reads them.
    """

    name: str
    title: str
    question: str
    answer: str
    race: str
    place: str = "tree"
    phase: str | None = None


LESSONS = (
    LessonTemplate(
        "why", "Why a large model is slow",
        "Every block of the upper bar is one pass of the large model, the target: {passes} of them for {tokens} tokens."
        " Why so many?",
        "A language model says one token per pass: a word, or a piece of one. The next pass needs the token before it,"
        " so passes cannot run side by side. Reading picture and question gave the first token, and {passes} passes"
        " gave the others. In the lower bar a small model, the draft, guesses ahead, and the target checks many guesses"
        " in one pass: {fast} passes for the same text.",
        "saved", "timeline",
    ),
    LessonTemplate(
        "chain", "A chain of guesses",
        "Here the draft guessed {drafted} tokens in a row, each after the one before. How many of them may stay?",
        "{accepted}: “{said}”. Then it guessed “{guess}” ({guess_prob}) where the target says “{wanted}”. The"
        " {lost} guesses behind the wrong one are lost however good they were, since they were guesses about a text"
        " that will never be. “{wanted}” comes out of the same pass, so the step still brought {emitted} tokens.",
        "chain",
    ),
    LessonTemplate(
        "wrong", "A wrong guess",
        "The draft says “{guess}” ({guess_prob}). There is no such thing at that place in the picture. Does the answer"
        " go wrong?",
        "It does not. The target looks at the same picture and wants “{wanted}” ({wanted_prob}), so “{guess}” and"
        " everything behind it is dropped, and the answer goes on with the target's own word. A wrong guess costs a"
        " little time and never a word: the text is the same as the target's alone.",
        "wrong",
    ),
    LessonTemplate(
        "doubt", "Doubt",
        "Before one word of this step the draft wavers between “{first}” ({first_prob}) and “{second}” ({second_prob})."
        " Where does one see its doubt before anything is checked?",
        "In the fill of the node before that word: {doubt} nats, as much as between {choices} words that are equally"
        " likely. A dark node means that the draft sees one word only. Doubt is known before the target is asked, so it"
        " can decide where guesses are spent: above {threshold} nats the tree branches.",
        "saved",
    ),
    LessonTemplate(
        "tree", "A tree",
        "A chain of guesses would have gone on with “{first}”, the draft's favourite. What did the tree do?",
        "It tried {tried} words. The target wants “{second}”, which was not the draft's favourite; but it is in the"
        " tree, so this step still brought {behind} tokens from there on. With a chain every such place is a gamble."
        " This is the paper's second point: spend guesses where the draft has doubts.",
        "saved",
    ),
    LessonTemplate(
        "pass", "One pass and its mask",
        "“{first}” and “{second}” cannot both be the next word. How can one pass of the target check both, and all"
        " {drafted} guesses of this tree?",
        "By what each guess may look at, the attention mask: it sees the text so far, its own ancestors and itself."
        " “{second}” does not see “{first}”, so each is judged as if it alone followed, and both stand at the same"
        " position. Every row of the mask is one guess; the filled fields are what it sees.",
        "saved", "mask", "check",
    ),
    LessonTemplate(
        "cache", "What the cache keeps",
        "That pass left {columns} columns in the target's memory, the KV cache: one for the root and one for each of"
        " the {drafted} guesses. Which of them may stay?",
        "Those of the accepted branch, the root included: {kept} of {columns}. They move together, and the rest is"
        " overwritten, so the next pass finds exactly the cache that the target would have had alone. “{bonus}”, which"
        " the target said itself, has no column yet: it is the next root.",
        "saved", "cache", "keep",
    ),
    LessonTemplate(
        "coin", "The coin",
        "With a temperature the target draws its words, so no word is the right one. The draft drew “{guess}”, to which"
        " it gives {q} and the target only {p}. How can guesses be kept and refused so that nothing changes?",
        "By a coin that keeps the guess with probability p / q = {odds}. Here the number drawn was u = {u}, not below"
        " that, so “{guess}” is refused. The target then draws from what it wants beyond the draft's offer,"
        " (p − q)₊ scaled to one, and this fell on “{said}”. Kept guesses and new draws together come out as p, for"
        " every word.",
        "coin", "coin", "accept",
    ),
    LessonTemplate(
        "pays", "Does it pay?",
        "The target said {tau} tokens a pass here, and yet the answer did not come {tau} times as fast. Where did the"
        " rest go?",
        "Into drafting, which is small but not free; into passes over many tokens, which take longer than a pass over"
        " one; and reading picture and question is not made faster at all. What that leaves depends on your models and"
        " your machine.",
        "saved", "verdict",
    ),
    LessonTemplate(
        "easy", "An easy sentence",
        "The draft has less than a tenth of the target's parameters, and yet {accepted} of its guesses in a row are"
        " right here. What makes this stretch so easy?",
        "Look at the fill: the nodes are dark, so the draft was sure of itself. “{said}” is mostly a matter of habit:"
        " each word follows from the words before it, and habits are what a small model learns well. The target needed"
        " one pass for {emitted} tokens that would have taken it {emitted}.",
        "easy",
    ),
    LessonTemplate(
        "blank", "A draft that sees nothing",
        "In this run the draft was shown a plain grey picture, and the target the real one. Which words can it still"
        " guess?",
        "Those that follow from the words before them. At words that need the picture it is lost: here it guesses"
        " “{guess}” where the target, which sees, wants “{wanted}”. It gets {tau} tokens out of a target pass; run the"
        " same question with the picture and compare. This is the paper's first point: draft and target look through"
        " the same eyes. The answer itself has not changed by a token.",
        "blank",
    ),
    LessonTemplate(
        "picture", "What the picture decides",
        "The target wrote {tokens} tokens about this picture. Which of them would it have written without seeing it?",
        "The pale ones: they follow from the words before them. {grounded} of {tokens} needed the picture, which means"
        " that they are at least {factor} times less likely when the target sees a grey one. “{word}” falls from {seen}"
        " to {blank} then, and to {part} where only one part of the picture is grey: point at it to see which. The"
        " blind draft of the lesson before failed at such a word; what follows from other words it could"
        " guess all the same.",
        "saved", "grounding",
    ),
    LessonTemplate(
        "before", "Before distillation",
        "This draft has learnt from the same texts as the target, but never from the target itself. Here it expects"
        " “{guess}” ({guess_prob}), and the target says “{wanted}”. Who is right?",
        "The draft's guess may be good English, but only the target's wording counts, and this draft has not learnt"
        " what the target prefers. It gets {tau} tokens out of a target pass. The next lesson runs the same question on"
        " the same picture after distillation.",
        "before",
    ),
    LessonTemplate(
        "after", "After distillation",
        "The same draft again, after lessons from the target: trained to give each next word the chance that the target"
        " gives it. What has changed?",
        "It makes more of the target's choices: {later} tokens out of a target pass where it got {tau} before, and here"
        " {accepted} right in a row. That is the paper's third point. This picture shows it clearly; in others the gain"
        " is smaller, because all that our toy models ever say is in the texts that both drafts have read. The lab"
        " below measures it for any picture, word by word.",
        "after",
    ),
    LessonTemplate(
        "states", "A draft that reads the target's state",
        "This draft, EagleVLM, has one layer and no view of its own: it guesses from the state out of which the"
        " target's last word came. Why does that help, and what happens when its first guess is wrong, as “{guess}”"
        " ({guess_prob}) is here?",
        "That state holds what the target made of picture and text, so one layer need only say how it goes on. But only"
        " the first guess of a branch is made from the target's own state, each guess behind it from one that the draft"
        " guessed as well. The target says “{wanted}”, so the {below} guesses below “{guess}” came out of states of a"
        " text that will never be, and are lost. The pass that refused them gives the draft a true state to go on from,"
        " and the next step gets {again} guesses right. Over the whole answer it is {tau} tokens out of a target pass;"
        " the draft VLM, which reads everything for itself, gets {other} here. The lab compares them on any picture.",
        "states",
    ),
    LessonTemplate(
        "perfect", "If the draft were perfect",
        "In this run the target is its own draft. Each pass checks {depth} guesses, all of them are right, and it"
        " brings {emitted} tokens. Yet the answer came no sooner than from the target alone. Why?",
        "Guesses cannot get better: the draft gives every next word the probability that the target gives it, so"
        " KL(target ‖ draft) = 0. A step then brings depth + 1 = {emitted} tokens. Only the last one is cut short, by"
        " the end of the answer, so τ is {tau}. But here a guess costs a whole pass of the target: {depth} passes to"
        " guess and one to check bring {emitted} tokens, and so do {emitted} passes without a draft. What is left to"
        " gain is the cost of drafting. If that took a tenth of the time, this answer would come {tenth} times as"
        " fast; if it took none, {free} times and not {emitted}, since a pass over {emitted} tokens takes longer than"
        " one over one.",
        "perfect", "verdict",
    ),
)
