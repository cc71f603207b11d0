// Buttons that kill processes, where `orca serve --demo` printed an address with #demo=PORT.TOKEN.

const KEPT = "orca.demo";
const element = (id) => document.getElementById(id);

/** Show the buttons if the address has a token, or had one before in this tab. */
export function demo() {
  takeToken();
  for (const button of element("demo").querySelectorAll("button")) {
    button.addEventListener("click", () => kill(button));
  }
}

/** Take the token out of the address, so that it is neither bookmarked nor shown. */
export function takeToken() {
  const found = /^#demo=(\d+)\.([\w-]+)$/.exec(location.hash);
  if (found) {
    sessionStorage.setItem(KEPT, JSON.stringify({ port: found[1], token: found[2] }));
    history.replaceState(null, "", location.pathname + location.search);
  }
  element("demo").hidden = sessionStorage.getItem(KEPT) === null;
}

async function kill(button) {
  const { port, token } = JSON.parse(sessionStorage.getItem(KEPT));
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
