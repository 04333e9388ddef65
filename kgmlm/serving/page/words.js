// Numbers and names of signals, as people read them.

export const SIGNALS = {
  likelihood: "name in the text",
  vector: "meaning of the text",
  kge: "graph embedding",
  rules: "rules",
  types: "types",
  biencoder: "text encoder",
  linked: "already linked",
  mentions: "named in a description",
  similar_entities: "similar entities have it",
  similar_answers: "like known answers",
  unseen: "not seen in training",
  reverse: "scored in reverse",
  trees: "decision trees",
};

export const ORDER = Object.keys(SIGNALS);
export const signal = (key) => SIGNALS[key] ?? key;

export const count = (number) => number.toLocaleString("en-US");
export const fixed = (number, digits = 2) => number.toFixed(digits).replace("-", "−");
export const signed = (number, digits = 2) => (number < 0 ? "" : "+") + fixed(number, digits);

export function percent(probability) {
  if (probability > 0.995) return "> 99 %";
  if (probability < 0.001) return "< 0.1 %";
  return `${(100 * probability).toFixed(probability < 0.0995 ? 1 : 0)} %`;
}

export const many = (number, one, more = `${one}s`) => `${count(number)} ${number === 1 ? one : more}`;

// What each signal adds beyond what it adds to an average entity; those that count.
export function advantages(answer, usual) {
  const parts = Object.entries(answer.parts).filter(([, part]) => part.weight !== 0);
  const found = parts.map(([key, part]) => [key, part.adds - (usual[key] ?? 0)]);
  return found.sort(([a], [b]) => ORDER.indexOf(a) - ORDER.indexOf(b));
}

export const sum = (pairs) => pairs.reduce((total, [, value]) => total + value, 0);

// Training has it, a hidden split has it, or nobody does.
export function mark(answer) {
  if (!answer.possible) return ["impossible", "As training has it, this cannot be an answer."];
  if (!answer.known) return ["new", "The graph does not have this triple."];
  if (answer.in_test) return ["in test", "The test split has this triple; the model was not trained on it."];
  return ["known", "The graph has this triple."];
}
