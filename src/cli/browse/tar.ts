import { encodeFullHeader, padding, TAR_END } from '../../archive/index.ts';
import { incompleteSnapshot } from '../../uploader/index.ts';
import { damagedFile } from './file-bytes.ts';
import type { VolumeFile, WalkedFile } from './volume-file.ts';

/** Longer ones exist on no file system. */
const LINK_BYTES_MAX = 64 << 10;
const TYPES: Readonly<Record<string, string>> = { f: '0', s: '2', d: '5' };

export interface TarOptions {
  readonly signal: AbortSignal;
  /** Of what cannot be in the archive: devices, pipes and sockets. */
  readonly onLeftOut: (path: string) => void;
}

/**
 * A directory of a volume with everything below it, or one file, as a tar archive (pax): owners, modes, times to the nanosecond, symbolic
 * links. In memory are a piece of a file and a part of each directory on the way down. Throws `SNAPSHOT_INCOMPLETE`, `DAMAGED_SNAPSHOT`, and what
 * the repository throws; the archive has no end then, which whoever unpacks it notices.
 */
export async function* tarOf(
  root: VolumeFile,
  { signal, onLeftOut }: TarOptions,
): AsyncGenerator<Uint8Array> {
  if (root.incomplete !== undefined) throw incompleteSnapshot('volume', root.incomplete);
  const isTree = root.entry.type === 'd';
  for await (const { file, path } of root.walk(signal)) {
    if (isTree && path === '') continue;
    const { entry } = file;
    const name = isTree ? path : entry.name;
    assertHarmless(name);
    const type = TYPES[entry.type];
    if (type === undefined) onLeftOut(name);
    else yield* member(file, { name, type, signal });
  }
  yield TAR_END;
}

async function* member(
  file: WalkedFile['file'],
  { name, type, signal }: { name: string; type: string; signal: AbortSignal },
): AsyncGenerator<Uint8Array> {
  const { mode, uid, gid, mtimeNs, sizeBytes } = file.entry;
  const size = type === '0' ? sizeBytes : 0;
  const head = { type, size, uid, gid, mtimeNs, mode: mode & 0o7777, mtime: 0 };
  if (type === '5') {
    yield encodeFullHeader({ ...head, name: `${name}/` });
    return;
  }
  if (type === '2') {
    const pieces: Uint8Array[] = [];
    let length = 0;
    for await (const piece of file.bytes(signal)) {
      length += piece.length;
      if (length > LINK_BYTES_MAX) throw damagedFile(name, 'its target is too long');
      pieces.push(Buffer.from(piece));
    }
    yield encodeFullHeader({ ...head, name, linkName: Buffer.concat(pieces).toString() });
    return;
  }
  yield encodeFullHeader({ ...head, name });
  yield* file.bytes(signal);
  yield padding(size);
}

/** Anybody who writes to the repository chooses names; nobody who unpacks the archive is to be led elsewhere. */
function assertHarmless(path: string): void {
  const parts = path.split('/');
  if (parts.every((part) => part !== '' && part !== '.' && part !== '..' && !part.includes('\0'))) {
    return;
  }
  throw damagedFile(JSON.stringify(path), 'no file can have this name');
}
