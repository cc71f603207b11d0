// What the scripts for Node share: the server's address, and steps that say whether they passed.
export const url = process.env.ORCA_URL;
export const baseURL = `${url}/v1`;
export const apiKey = "none";
export const model = process.env.ORCA_MODEL;
// whether answers have reasoning: "no", "may" or "must"; a budget ends it, since a model of another family does not
export const reasons = process.env.ORCA_REASONS ?? "no";
export const budget = reasons === "no" ? {} : { thinking_token_budget: 12 };
export const question = "What is the capital of France?";

/** Runs the function. It passes unless it throws; what it returns is the detail. */
export async function step(name, body) {
  try {
    say(name, true, String((await body()) ?? ""));
  } catch (error) {
    console.error(error);
    say(name, false, `${error.name}: ${error.message}`);
  }
}

/** Throws with what was seen when the condition does not hold. */
export function expect(condition, ...seen) {
  if (!condition) throw new Error(`unexpected: ${seen.map((value) => JSON.stringify(value)).join(", ")}`);
}

function say(name, passed, detail) {
  const line = { step: name, passed, detail: detail.split(/\s+/).join(" ").slice(0, 500) };
  process.stdout.write("\n" + JSON.stringify(line) + "\n");
}
