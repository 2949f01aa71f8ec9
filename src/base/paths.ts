/** Joins a directory and a name where either may be bytes that are not UTF-8. */
export function joinPath(
  directory: string | Uint8Array,
  name: string | Uint8Array,
): string | Uint8Array {
  if (typeof directory === 'string' && typeof name === 'string') {
    return directory.endsWith('/') ? directory + name : `${directory}/${name}`;
  }
  const parts = [directory, '/', name].map((part) => Buffer.from(part as string));
  return Uint8Array.from(Buffer.concat(parts));
}
