// A recorded lane and its steps, with what follows from their lists: depths, children, ranks, the accepted path.

export class Step {
  constructor(raw) {
    Object.assign(this, raw.tree);
    this.accepted = raw.verification.accepted;
    this.bonus = raw.verification.next_token;
    this.path = [0, ...this.accepted];
    this.emitted = raw.emitted;
    this.view = raw.target;
    this.pruned = raw.pruned;
    this.draws = raw.draws;
    this.seconds = raw.seconds;
    this.total = raw.seconds.draft + raw.seconds.verify + raw.seconds.rest;
    this.drafted = this.tokens.length - 1;
    this.emittedNodes = this.accepted.slice(0, this.emitted.length);
    this.bonusUnused = this.emitted.length <= this.accepted.length;
    this.children = childrenOf(this.parents);
    this.depths = [0];
    this.scores = [0];
    for (let node = 1; node < this.tokens.length; node++) {
      this.depths.push(this.depths[this.parents[node]] + 1);
      this.scores.push(this.scores[this.parents[node]] + this.log_probs[node]);
    }
    this.ranks = this.tokens.map(() => 0); // of each node among its siblings, by the draft's probability
    for (const family of this.children) this.likeliest(family).forEach((node, rank) => (this.ranks[node] = rank));
  }

  likeliest(nodes) {
    return [...nodes].sort((one, other) => this.log_probs[other] - this.log_probs[one]);
  }

  // From the root down to `node`, both included.
  pathTo(node) {
    const path = [];
    for (let at = node; at >= 0; at = this.parents[at]) path.unshift(at);
    return path;
  }
}

export class Trace {
  constructor(raw) {
    Object.assign(this, raw);
    this.raw = raw;
    this.steps = raw.steps.map((step) => new Step(step));
    this.ends = new Set(raw.eos_token_ids);
    this.ids = [raw.prefill.first_token, ...this.steps.flatMap(({ emitted }) => emitted)];
    this.ruleName = raw.rule || raw.config.rule;
    const { vision_seconds: vision, target_seconds: target, draft_seconds: draft } = raw.prefill;
    this.reading = vision + target + draft; // seconds
    const { children, drafter } = raw.config;
    this.exact = children === "best" || drafter === "prompt-lookup" || drafter === "none"; // the target's own tokens
  }
}

// Lists the children of every node, in the order of nodes.
export function childrenOf(parents) {
  const children = parents.map(() => []);
  parents.forEach((parent, node) => node && children[parent].push(node));
  return children;
}

// The nodes of the accepted path that have children, and what came of each: the child to which the draft gave most was
// accepted (`favourite`), another was (`saved`), none was (`missed`). Behind the answer's end nothing counts.
export function judgedNodes(step) {
  return step.path.slice(0, step.emitted.length).flatMap((node, position) => {
    const children = step.children[node];
    if (!children.length) return [];
    const taken = step.emittedNodes[position];
    const outcome = taken === undefined ? "missed" : step.ranks[taken] ? "saved" : "favourite";
    return [{ node, position, entropy: step.entropies[node], children, outcome }];
  });
}

export const savedTokens = (step) => judgedNodes(step).filter(({ outcome }) => outcome === "saved").length;
