// Open Responses' compliance tests, by the runner that comes with them.
import { spawnSync } from "node:child_process";
import { existsSync, symlinkSync } from "node:fs";

const { ORCA_URL, ORCA_MODEL, ORCA_SUITE } = process.env;
const packages = new URL("./node_modules", import.meta.url).pathname;
if (!existsSync(`${ORCA_SUITE}/node_modules`)) symlinkSync(packages, `${ORCA_SUITE}/node_modules`);
const words = ["bin/compliance-test.ts", "--json", "--base-url", `${ORCA_URL}/v1`, "--api-key", "none", "--model", ORCA_MODEL];
const done = spawnSync(`${packages}/.bin/bun`, words, { cwd: ORCA_SUITE, encoding: "utf8", maxBuffer: 1e8 });
process.stderr.write(done.stderr ?? String(done.error));
for (const { id, status, errors } of JSON.parse(done.stdout).results)
  console.log(JSON.stringify({ step: id, passed: status === "passed", detail: (errors ?? []).join("; ").slice(0, 300) }));
