// Buttons that kill processes, where `orca serve --demo` printed an address with #demo=PORT.TOKEN.

const KEPT = "orca.demo";
const element = (id) => document.getElementById(id);

/** Take the token from the address, and show the buttons if there is one. */
export function demo() {
  const found = /^#demo=(\d+)\.([\w-]+)$/.exec(location.hash);
  if (found) {
    sessionStorage.setItem(KEPT, JSON.stringify({ port: found[1], token: found[2] }));
    history.replaceState(null, "", location.pathname + location.search);
  }
  const kept = JSON.parse(sessionStorage.getItem(KEPT) ?? "null");
  element("demo").hidden = !kept;
  if (!kept) return;
  for (const button of element("demo").querySelectorAll("button")) {
    button.addEventListener("click", () => kill(kept, button));
  }
}

async function kill({ port, token }, button) {
  const told = element("demo-told");
  button.disabled = true;
  try {
    const response = await fetch(`http://127.0.0.1:${port}/`, {
      method: "POST",
      headers: { "Content-Type": "application/json", Authorization: `Bearer ${token}` },
      body: JSON.stringify({ kill: button.dataset.kill }),
    });
    const answer = await response.json().catch(() => null);
    told.textContent = response.ok ? `killed the ${button.dataset.kill}` : (answer?.error ?? `status ${response.status}`);
  } catch {
    told.textContent = "orca serve does not answer";
  }
  button.disabled = false;
  button.focus();
}
