// What the page carries: deflated and in base64, inflated when it is first needed.

const inflated = new Map();

/** Returns the bytes of a payload, null if the page has none of that name. */
function payload(name) {
  if (!inflated.has(name)) {
    inflated.set(name, inflate(document.querySelector(`[data-payload="${name}"]`)));
  }
  return inflated.get(name);
}

/** Returns a payload that is JSON; `none` if the page has none of that name. */
async function read(name, none = {}) {
  const bytes = await payload(name);
  return bytes ? JSON.parse(new TextDecoder().decode(bytes)) : none;
}

async function inflate(carrier) {
  if (!carrier) return null;
  const packed = Uint8Array.from(atob(carrier.textContent), (letter) => letter.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}
