import { encodeHeader, END, padded } from './header.ts';

/** Velero's mode for every item (pkg/backup/item_backupper.go). */
const MODE = 0o755;

export interface NewTarEntry {
  readonly path: string;
  readonly bytes: Uint8Array;
  /** Seconds since 1970. */
  readonly mtime: number;
  readonly mode?: number;
}

export function tarEntry({ path, bytes, mtime, mode = MODE }: NewTarEntry): readonly Uint8Array[] {
  const header = encodeHeader({ name: path, size: bytes.length, mode, mtime, type: '0' });
  return bytes.length === 0 ? [header] : [header, padded(bytes)];
}

export async function* writeTar(
  entries: AsyncIterable<NewTarEntry> | Iterable<NewTarEntry>,
): AsyncGenerator<Uint8Array> {
  for await (const entry of entries) yield* tarEntry(entry);
  yield END;
}
