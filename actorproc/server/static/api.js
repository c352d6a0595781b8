// Requests to the server, with the token if one is needed. The token is kept for this tab only.

const KEY = "actorproc-token";
let asking = null;

function headers(extra = {}) {
  const token = sessionStorage.getItem(KEY);
  return token ? {...extra, Authorization: `Bearer ${token}`} : extra;
}

/** Ask for a token. False if the question was dismissed. `problem`: what is wrong with the present one. */
function askToken(problem) {
  asking ??= new Promise(resolve => {
    const dialog = document.getElementById("ask-token"), input = document.getElementById("token");
    const shown = document.getElementById("token-problem");
    shown.hidden = !problem;
    shown.textContent = problem ?? "";
    dialog.addEventListener("close", () => {
      const given = dialog.returnValue === "ok" && input.value;
      if (given) sessionStorage.setItem(KEY, input.value);
      input.value = "";
      asking = null;
      resolve(Boolean(given));
    }, {once: true});
    dialog.returnValue = "";
    dialog.showModal();
  });
  return asking;
}

/** The response; asks for a token and repeats as long as one is needed. Throws with the server's message. */
async function request(path, options = {}) {
  for (;;) {
    const response = await fetch(path, {...options, headers: headers(options.headers)});
    if (response.ok) return response;
    const answer = await response.json().catch(() => ({}));
    const given = sessionStorage.getItem(KEY), isRefused = response.status === 401 && given || answer.needs === "http_token";
    if ((response.status === 401 || isRefused) && await askToken(isRefused ? `The token that was given does not do: ${answer.error}.` : null)) continue;
    throw new Error(answer.error ?? `${response.status} ${response.statusText}`);
  }
}

export const get = async path => (await request(path)).json();

export async function post(path, content) {
  const options = {method: "POST", body: JSON.stringify(content), headers: {"Content-Type": "application/json"}};
  return (await request(path, options)).json();
}

/** Server-sent events until `signal` aborts or the stream ends. (EventSource cannot send a token.) */
export async function* events(path, signal) {
  const response = await request(path, {signal});
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let buffer = "";;) {
    const {value, done} = await reader.read();
    if (done) return;
    buffer += value;
    const parts = buffer.split("\n\n");
    buffer = parts.pop();
    for (const part of parts) {
      const fields = Object.fromEntries(part.split("\n").map(row => row.split(/: (.*)/s, 2)));
      yield {name: fields.event, content: JSON.parse(fields.data)};
    }
  }
}
