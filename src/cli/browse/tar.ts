import { lookup } from '../../base/index.ts';
import { encodeFullHeader, padding, TAR_END } from '../../archive/index.ts';
import { incompleteSnapshot } from '../../uploader/index.ts';
import { damagedFile } from './file-bytes.ts';
import type { VolumeFile, WalkedFile } from './volume-file.ts';

/** No file system allows longer links. */
const LINK_BYTES_MAX = 64 << 10;
/**
 * Not a valid header: GNU tar and other programs fail on it. An archive that ends after a member
 * looks complete to them. Within a member they notice the end, and this text would look like a part
 * of the file.
 */
const CUT_OFF = Buffer.alloc(512, ' ');
CUT_OFF.write('The archive is cut off here, since the rest could not be read.\n');
const SLASH = Buffer.from('/');
const TYPES: Readonly<Record<string, string>> = { f: '0', s: '2', d: '5' };

export interface TarOptions {
  readonly signal: AbortSignal;
  /** Called for devices, pipes and sockets, which the archive cannot contain. */
  readonly onLeftOut: (path: string) => void;
}

/**
 * A directory of a volume with all its contents, or one file, as a tar archive (pax). Contains
 * owners, modes, times to the nanosecond and symbolic links. Memory holds a piece of a file, and a
 * part of each open directory. Throws `SNAPSHOT_INCOMPLETE`, `DAMAGED_SNAPSHOT`, and errors of the
 * repository. Before that it ends the archive so that programs fail to unpack it.
 */
export async function* tarOf(
  root: VolumeFile,
  options: TarOptions,
): AsyncGenerator<Uint8Array, void, void> {
  if (root.incomplete !== undefined) throw incompleteSnapshot('volume', root.incomplete);
  const member: OpenMember = { bytesDue: 0 };
  try {
    yield* membersOf(root, member, options);
  } catch (error) {
    if (member.bytesDue === 0) yield CUT_OFF;
    throw error;
  }
  yield TAR_END;
}

interface OpenMember {
  /** Missing bytes of the member, with the padding of its last block. */
  bytesDue: number;
}

async function* membersOf(
  root: VolumeFile,
  open: OpenMember,
  { signal, onLeftOut }: TarOptions,
): AsyncGenerator<Uint8Array, void, void> {
  const isTree = root.entry.type === 'd';
  for await (const { file, path, diskPath } of root.walk(signal)) {
    if (isTree && path === '') continue;
    const { entry } = file;
    const shown = isTree ? path : entry.name;
    assertHarmless(shown);
    const type = lookup(TYPES, entry.type);
    if (type === undefined) onLeftOut(shown);
    else yield* member(file, open, { name: diskPath(), shown, type, signal });
  }
}

interface MemberOptions {
  /** Bytes of the path, which a tar archive contains unchanged. */
  readonly name: Uint8Array;
  readonly shown: string;
  readonly type: string;
  readonly signal: AbortSignal;
}

async function* member(
  file: WalkedFile['file'],
  open: OpenMember,
  { name, shown, type, signal }: MemberOptions,
): AsyncGenerator<Uint8Array> {
  const { mode, uid, gid, mtimeNs, sizeBytes } = file.entry;
  const size = type === '0' ? sizeBytes : 0;
  const head = { type, size, uid, gid, mtimeNs, mode: mode & 0o7777, mtime: 0 };
  if (type === '5') {
    yield encodeFullHeader({ ...head, name: Buffer.concat([name, SLASH]) });
    return;
  }
  if (type === '2') {
    const pieces: Uint8Array[] = [];
    let length = 0;
    for await (const piece of file.bytes(signal)) {
      length += piece.length;
      if (length > LINK_BYTES_MAX) throw damagedFile(shown, 'its target is too long');
      pieces.push(Buffer.from(piece));
    }
    yield encodeFullHeader({ ...head, name, linkName: Buffer.concat(pieces) });
    return;
  }
  const filling = padding(size);
  open.bytesDue = size + filling.length;
  yield encodeFullHeader({ ...head, name });
  for await (const piece of file.bytes(signal)) {
    open.bytesDue -= piece.length;
    yield piece;
  }
  open.bytesDue -= filling.length;
  yield filling;
}

/** The names are not trusted, and must not lead outside the unpacked directory. */
function assertHarmless(path: string): void {
  const parts = path.split('/');
  if (parts.every((part) => part !== '' && part !== '.' && part !== '..' && !part.includes('\0'))) {
    return;
  }
  throw damagedFile(JSON.stringify(path), 'no file can have this name');
}
