// Asks the server; its answer comes as lines of JSON, each as soon as known.

export class Trouble extends Error {}

const CUT = "The connection to the server was lost. Is rs-keras demo still "
  + "running?";

async function reasonOf(response) {
  try {
    return (await response.json()).error;
  } catch {
    return `The server answers with status ${response.status}.`;
  }
}

async function sent(path, body, signal) {
  try {
    return await fetch(path, {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify(body),
      signal,
    });
  } catch (error) {
    if (signal.aborted) throw error;
    throw new Trouble(CUT);
  }
}

async function* linesOf(response) {
  const reader = response.body
    .pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    yield* lines.map((line) => JSON.parse(line));
  }
}

// Yields the lines; `last` is the stage that a whole answer ends with.
export async function* ask(path, body, last, signal) {
  const response = await sent(path, body, signal);
  if (!response.ok) throw new Trouble(await reasonOf(response));
  try {
    for await (const line of linesOf(response)) {
      if (line.error) throw new Trouble(line.error);
      yield line;
      if (line.stage === last) return;
    }
  } catch (error) {
    if (error instanceof Trouble || signal.aborted) throw error;
  }
  throw new Trouble(CUT);
}
