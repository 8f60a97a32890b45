// The data of the page: JSON in an element, with columns of numbers as base64 of little-endian arrays.

/** The data of the page; parsed once, by whoever asks first. */
const pageData = (() => {
  let data = null;
  return () => (data ??= JSON.parse(document.getElementById("data").textContent));
})();

/** A column as a typed array of `Kind`; null stays null. */
function decodeColumn(text, Kind) {
  if (text === null) return null;
  if (Uint8Array.fromBase64) return new Kind(Uint8Array.fromBase64(text).buffer);
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < bytes.length; i++) bytes[i] = binary.charCodeAt(i);
  return new Kind(bytes.buffer);
}
