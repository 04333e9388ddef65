// The service's paths, below wherever the page is. Where it wants a token, the page asks for it once per tab.

const KEPT = "kgmlm-token";
let wanted = async () => null;

// `ask` is called when a token is missing or wrong; it resolves to one.
export function onToken(ask) {
  wanted = ask;
}

function headers() {
  const token = sessionStorage.getItem(KEPT);
  return token === null ? {} : { Authorization: `Bearer ${token}` };
}

let waiting = 0;

// While an answer is waited for, the root element says so.
function asking(more) {
  waiting += more;
  document.documentElement.toggleAttribute("data-asking", waiting > 0);
}

async function request(path, options = {}) {
  asking(1);
  try {
    return await answered(path, options);
  } finally {
    asking(-1);
  }
}

async function answered(path, options) {
  for (;;) {
    let answer;
    try {
      answer = await fetch(`.${path}`, { ...options, headers: { ...options.headers, ...headers() } });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new Error("The service does not answer. Is it still running?");
    }
    if (answer.status === 401) {
      const wrong = sessionStorage.getItem(KEPT) !== null;
      sessionStorage.removeItem(KEPT);
      sessionStorage.setItem(KEPT, await wanted(wrong));
      continue;
    }
    if (answer.status === 503 && !options.signal?.aborted) {
      const seconds = Math.min(Number(answer.headers.get("Retry-After") ?? 1), 5);
      await new Promise((done) => setTimeout(done, 1000 * seconds));
      continue;
    }
    const body = await answer.json();
    if (!answer.ok) throw new Error(body.error ?? `The service answers ${answer.status}.`);
    return body;
  }
}

const query = (values) => new URLSearchParams(Object.entries(values).filter(([, v]) => v !== undefined));

export const get = (path, values = {}, signal = undefined) => request(`${path}?${query(values)}`, { signal });

export const post = (path, body, signal = undefined) =>
  request(path, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
    signal,
  });
